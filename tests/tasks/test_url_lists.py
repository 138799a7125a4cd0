"""Finding lists: files, folders as UT1 lays them out, categories, and what is not there."""

import gzip

import pytest

from pipeline_config.curation import UrlFiltering
from pipeline_config.errors import SettingsError, SourceError
from tasks.steps.urls.lists import UrlLists
from tasks.url_lists import find_lists, without_places


@pytest.fixture
def ut1(tmp_path):
    """A folder with two categories in folders and one in files."""
    for name, text in {
        "adult/domains": "adult.example\n",
        "adult/urls": "half.example/adult\n",
        "adult/usage": "what this is\n",
        "games/domains": "games.example\n",
        "README": "no list\n",
    }.items():
        path = tmp_path / "ut1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "ut1" / "chat.expressions.txt.gz").write_bytes(gzip.compress(b"chat\n"))
    return tmp_path / "ut1"


def found(**settings) -> list[tuple[str, str, str]]:
    return [(one.name, one.kind, one.use) for one in find_lists(UrlFiltering(**settings))]


def test_a_folder_is_all_its_lists_and_a_category_is_one(ut1):
    adult = [("adult", "domains", "block"), ("adult", "urls", "block")]
    everything = [*adult, ("chat", "expressions", "block"), ("games", "domains", "block")]
    assert found(blocklists=(str(ut1),)) == everything
    assert found(blocklists=(str(ut1 / "adult"),)) == adult
    assert found(ut1=str(ut1), ut1_categories=("chat", "adult")) == [everything[2], *adult]
    assert found(allowlists=(f"file://{ut1}/games/domains",)) == [("games", "domains", "allow")]


def test_any_other_file_holds_entries(tmp_path):
    (tmp_path / "mine.txt").write_text("a.example\n")
    assert found(blocklists=(str(tmp_path / "mine.txt"),)) == [("mine", "entries", "block")]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"blocklists": ("{ut1}/nothing",)}, SourceError, "cannot read the list .*nothing"),
        ({"allowlists": ("nowhere://x",)}, SourceError, "cannot read the list nowhere://x"),
        ({"blocklists": ("{ut1}/empty",)}, SourceError, "holds no file called domains, urls, expressions"),
        (
            {"ut1": "{ut1}", "ut1_categories": ("no",)},
            SettingsError,
            "no category 'no' .*: adult, chat, games",
        ),
        ({"ut1": "{ut1}/none", "ut1_categories": ("adult",)}, SettingsError, "no category 'adult' .*: none"),
    ],
)
def test_what_is_not_there_is_named(ut1, settings, error, message):
    (ut1 / "empty").mkdir()
    filled = {
        name: value.format(ut1=ut1) if isinstance(value, str) else tuple(v.format(ut1=ut1) for v in value)
        for name, value in settings.items()
    }
    with pytest.raises(error, match=message):
        find_lists(UrlFiltering(**filled))


def test_a_key_holds_the_content_of_the_lists_and_not_their_place(ut1, tmp_path):
    settings = UrlFiltering(blocklists=(str(ut1),), allowlists=(str(ut1 / "games"),))
    (ut1).rename(tmp_path / "moved")
    moved = UrlFiltering(
        blocklists=(str(tmp_path / "moved"),), allowlists=(str(tmp_path / "moved" / "games"),)
    )
    before = [one.facts for one in find_lists(moved)]
    assert without_places(settings) == without_places(moved)
    (tmp_path / "moved" / "adult" / "domains").write_text("other.example\n")
    assert before != [one.facts for one in find_lists(moved)]


def test_the_lists_of_ut1_can_all_be_used(home, shared_data):
    lists = find_lists(UrlFiltering(blocklists=(str(shared_data / "blocklists" / "ut1"),)))
    assert len(lists) == 96
    loaded = UrlLists(lists)
    assert loaded.entries.members > 70_000
