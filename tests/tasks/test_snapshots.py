"""Snapshots: which there are, what stands for them, and which are new."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline_config.errors import SettingsError, SourceError, UnreachableError
from pipeline_config.settings import Settings, Source
from tasks.lineage import Node, RunRecord
from tasks.snapshots import News, is_pattern, new_snapshots, snapshots_of, with_snapshots

FILES = (
    "CC-2024-10/warc/a.warc.gz",
    "CC-2024-10/warc/b.warc.gz",
    "CC-2023-50/warc/a.warc.gz",
    "CC-2024-18/deep/er/c.warc.gz",
    "CC-empty/readme.txt",
    "other/warc/a.warc.gz",
    "flat-CC-1.warc.gz",
    "flat-CC-2.warc.gz",
)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with snapshots, and lists of them."""
    folder = tmp_path / "crawl"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    (folder / "lines.txt").write_text("CC-2024-18\n\n CC-2024-10 \nother\n")
    (folder / "names.json").write_text('["CC-2024-18", "CC-2023-50"]')
    (folder / "collinfo.json").write_text(json.dumps([{"id": "CC-2024-18", "name": "x"}]))
    (folder / "wrong.json").write_text('[{"name": "x"}]')
    (folder / "cut.json").write_text("[")
    return folder


def source(base: Path | str, uri: str = "{dump}/warc/*.warc.gz", dump: str = "CC-*", **more: Any) -> Source:
    return Source(name="cc", kind="warc", base=str(base), uris=(uri,), dump=dump, **more)


@pytest.mark.parametrize(
    ("uri", "more", "dumps"),
    [
        pytest.param(
            "{dump}/warc/*.warc.gz", {}, ["CC-2023-50", "CC-2024-10"], id="with files, oldest first"
        ),
        pytest.param("{dump}/warc/[a].warc.gz", {}, ["CC-2023-50", "CC-2024-10"], id="choice of characters"),
        pytest.param("{dump}/warc/[!a].warc.gz", {}, ["CC-2024-10"], id="all but some characters"),
        pytest.param("{dump}/warc/?.warc.gz", {}, ["CC-2023-50", "CC-2024-10"], id="any character"),
        pytest.param("{dump}/**/c.warc.gz", {}, ["CC-2024-18"], id="at any depth"),
        pytest.param("flat-{dump}.warc.gz", {}, ["CC-1", "CC-2"], id="part of a file's name"),
        pytest.param("{dump}/warc/a.warc.gz", {"dump": "*"}, ["CC-2023-50", "CC-2024-10", "other"], id="all"),
        pytest.param("{dump}/warc/*", {"dump": "CC-2024-*"}, ["CC-2024-10"], id="pattern of names"),
        pytest.param("{dump}/warc/*", {"since": "CC-2024"}, ["CC-2024-10"], id="since"),
        pytest.param("{dump}/x", {"snapshots": "lines.txt"}, ["CC-2024-10", "CC-2024-18"], id="lines"),
        pytest.param("{dump}/x", {"snapshots": "names.json"}, ["CC-2023-50", "CC-2024-18"], id="JSON"),
        pytest.param("{dump}/x", {"snapshots": "collinfo.json"}, ["CC-2024-18"], id="Common Crawl's list"),
    ],
)
def test_the_snapshots_that_a_source_stands_for(
    base: Path, uri: str, more: dict[str, Any], dumps: list[str]
) -> None:
    found = snapshots_of(source(base, uri, **more))
    assert [one.dump for one in found] == dumps
    assert [one.name for one in found] == [f"cc-{dump}" for dump in dumps]
    assert [one.uris for one in found] == [(uri.replace("{dump}", dump),) for dump in dumps]
    assert not any(is_pattern(one) or one.snapshots or one.since for one in found)


def test_a_snapshot_keeps_all_else_of_its_source(base: Path) -> None:
    one = snapshots_of(source(base, weight=3.0, licence="CC0", max_warcs=2))[0]
    assert (one.weight, one.licence, one.max_warcs, one.base) == (3.0, "CC0", 2, str(base))


@pytest.mark.parametrize(
    ("dump", "name"),
    [
        pytest.param("ä b", "cc---b", id="characters that names cannot have"),
        pytest.param("x" * 100, "x" * 64, id="the end of a long name"),
        pytest.param("." + "x" * 63, "x" * 63, id="a dot where it was cut"),
    ],
)
def test_the_name_of_a_snapshot_is_a_valid_name(base: Path, dump: str, name: str) -> None:
    (base / "list").write_text(dump)
    (one,) = snapshots_of(source(base, "{dump}/x", "*", snapshots="list"))
    assert Source.model_validate(one.model_dump()).name == one.name
    assert (one.name, one.dump) == (name, dump)


@pytest.mark.parametrize(
    ("address", "more", "error", "words"),
    [
        pytest.param("", {"dump": "X-*"}, SourceError, r"no snapshot fits dump='X-\*' in ", id="none fits"),
        pytest.param("", {"since": "D"}, SourceError, "no snapshot fits .* from D in ", id="none so new"),
        pytest.param("", {"snapshots": "x.txt"}, SourceError, "cannot read the list .*/x.txt", id="no list"),
        pytest.param("", {"snapshots": "wrong.json"}, SourceError, "objects with an id", id="no id"),
        pytest.param("", {"snapshots": "cut.json"}, SourceError, "neither lines nor JSON", id="cut list"),
        pytest.param(
            "http://127.0.0.1:9", {"snapshots": "x"}, UnreachableError, "cannot read the list", id="away"
        ),
        pytest.param("http://127.0.0.1:9", {}, UnreachableError, "cannot list http://", id="listing away"),
    ],
)
def test_snapshots_that_cannot_be_had_are_an_error_that_says_why(
    base: Path, address: str, more: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"source cc: .*{words}"):
        snapshots_of(source(address or base, **more))


def settings(base: Path, name: str = "mine") -> Settings:
    books = Source(name="books", kind="documents", uris=("books.jsonl",))
    return Settings(name=name, sources=(source(base), books))


def test_settings_have_a_source_for_each_snapshot_in_the_place_of_the_pattern(base: Path) -> None:
    expanded = with_snapshots(settings(base))
    assert [one.name for one in expanded.sources] == ["cc-CC-2023-50", "cc-CC-2024-10", "books"]
    assert with_snapshots(expanded) is expanded


def finished(number: int, names: list[str], stage: str = "document_split", **facts: str) -> RunRecord:
    """The record of a run on these sources."""
    run = RunRecord(**{"id": f"2026010{number}T000000-1a2b3c4d", "name": "mine", "started": "2026"} | facts)
    run.settings = {"sources": [{"name": name} for name in names]}
    run.nodes.append(Node(stage=stage, label="all", key=str(number), digest=f"digest {number}"))
    run.status = "finished" if "status" not in facts else run.status
    run.save()
    return run


@pytest.mark.usefixtures("home")
def test_everything_is_new_before_the_first_run(base: Path) -> None:
    news = new_snapshots(settings(base))
    assert (news.snapshots, news.since) == (["cc-CC-2023-50", "cc-CC-2024-10", "books"], "")
    assert news.version() == 0


@pytest.mark.usefixtures("home")
def test_what_the_last_corpus_had_is_known(base: Path) -> None:
    last = finished(1, ["books", "cc-CC-2023-50"])
    finished(2, ["cc-CC-2024-10"], status="failed")
    finished(3, ["cc-CC-2024-10"], name="another")
    finished(4, ["cc-CC-2024-10"], stage="url_filtering")  # it ended there
    news = new_snapshots(settings(base))
    assert (news.snapshots, news.since) == (["cc-CC-2024-10"], last.id)
    assert news.version() == 1
    finished(5, ["books", "cc-CC-2023-50", "cc-CC-2024-10"])
    assert new_snapshots(settings(base)).snapshots == []
    assert news.version() == 2


@pytest.mark.usefixtures("home")
def test_settings_without_a_pattern_have_no_snapshots(base: Path) -> None:
    with pytest.raises(SettingsError, match="mine: no source stands for snapshots"):
        new_snapshots(with_snapshots(settings(base)))


@pytest.mark.usefixtures("home")
def test_the_page_names_what_is_new(base: Path) -> None:
    news = News(with_snapshots(settings(base)), ["cc-CC-2024-10"], "")
    page = news.page("since *you* asked")
    assert page.startswith("Corpus mine, version 0\n")
    assert "since *you* asked" not in page
    assert "| cc-CC-2024-10 | new |" in page
    assert "| books | known |" in page
