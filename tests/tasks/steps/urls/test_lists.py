"""Block and allow lists: which line means which URL, and lists that are wrong."""

import gzip
import hashlib

import pytest
from datatrove.data import Document
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_config.curation import UrlFiltering
from pipeline_config.errors import SettingsError, SourceError
from tasks.steps.shards import FATE, removed
from tasks.steps.takedown import TakeDown, parse_takedown_list
from tasks.steps.url_filtering import FilterUrls
from tasks.steps.urls.canonical import split_url
from tasks.steps.urls.lists import UrlList, UrlLists

DOMAINS = "bad.example\n# a comment\n\n10.0.0.1\n.dotted.example\nBÜHNE.example\n2001:db8::7\nlocalhost\n"
URLS = "www.half.example/Private\nother.example/page.php?id=7\nhttps://port.example:8080/\nwhole.example/\n"
EXPRESSIONS = "(/banner/|adverts/)\n\\.exe$\n"


@pytest.fixture
def written(tmp_path, home):
    """Writes lists, `(name, kind, use, text)`, and returns what names them."""

    def write(*lists) -> list[UrlList]:
        found = []
        for number, (name, kind, use, text) in enumerate(lists):
            path = tmp_path / f"{number}"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found.append(UrlList(name, kind, use, str(path), digest))
        return found

    return write


def matched(lists: UrlLists, url: str) -> tuple[str, str] | None:
    found = lists.match(url, split_url(url))
    return found and (found.list_name, found.entry)


@pytest.mark.parametrize(
    ("url", "entry"),
    [
        pytest.param("http://a.bad.example/x", ("one", "bad.example"), id="subdomain"),
        pytest.param("http://BAD.example.:80", ("one", "bad.example"), id="odd spelling"),
        pytest.param("http://notbad.example/", None, id="ends alike"),
        pytest.param("http://10.0.0.1/", ("one", "10.0.0.1"), id="address"),
        pytest.param("http://167772161/", ("one", "10.0.0.1"), id="address as a number"),
        pytest.param("http://dotted.example/", ("one", "dotted.example"), id="dot in front"),
        pytest.param("http://bühne.example/", ("one", "xn--bhne-0ra.example"), id="IDN"),
        pytest.param("http://[2001:db8:0:0::7]/", ("one", "[2001:db8::7]"), id="IPv6"),
        pytest.param("http://localhost:8080/", ("one", "localhost"), id="one label"),
        pytest.param("http://half.example/private", ("two", "half.example/private"), id="URL"),
        pytest.param("http://www.half.example/PRIVATE/x", ("two", "half.example/private"), id="below"),
        pytest.param("http://half.example/private?x", ("two", "half.example/private"), id="with a query"),
        pytest.param("http://half.example/privately", None, id="begins alike"),
        pytest.param("http://half.example/", None, id="above"),
        pytest.param("http://x.half.example/private", None, id="another host"),
        pytest.param(
            "http://other.example/page.php?id=7&b=1", ("two", "other.example/page.php?id=7"), id="q"
        ),
        pytest.param("http://other.example/page.php?id=77", None, id="another query"),
        pytest.param("http://port.example:8080/x", ("two", "port.example:8080/"), id="port"),
        pytest.param("http://port.example/x", None, id="another port"),
        pytest.param("http://whole.example/x/y", ("two", "whole.example/"), id="all of a host"),
        pytest.param("http://a.example/BANNER/1", ("three", "(/banner/|adverts/)"), id="expression"),
        pytest.param("http://a.example/\ud800.exe", ("three", r"\.exe$"), id="lone surrogate"),
        pytest.param("no url/banner/", ("three", "(/banner/|adverts/)"), id="no URL"),
        pytest.param("http://good.example/", None, id="good"),
    ],
)
def test_a_list_means_what_its_lines_say(written, url, entry):
    lists = written(
        ("one", "domains", "block", DOMAINS),
        ("two", "urls", "block", gzip.compress(URLS.encode())),
        ("three", "expressions", "block", EXPRESSIONS),
    )
    assert matched(UrlLists(lists), url) == entry


def test_other_files_hold_domains_and_urls(written):
    lists = UrlLists(written(("mine", "entries", "block", "a.example\nb.example/x\n")))
    assert matched(lists, "http://b.example/x/y") == ("mine", "b.example/x")
    assert matched(lists, "http://www.a.example/") == ("mine", "a.example")
    assert matched(lists, "http://b.example/") is None


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("domains", "good.example\nbad domain\n", r"line 2: 'bad domain' is no domain or address"),
        ("domains", "a.example/path\n", r"line 1: 'a.example/path' is no domain"),
        ("urls", "http:///x\n", r"line 1: 'http:///x' is no URL"),
        ("entries", b"\xff\xfe\n", r"line 1: .* is not UTF-8"),
        ("expressions", "fine\n(?=a)\n", r"line 2: '\(\?=a\)' is no regular expression"),
        ("expressions", "(\n", r"line 1: '\(' is no regular expression"),
    ],
)
def test_a_wrong_line_is_named(written, kind, text, message):
    with pytest.raises(SettingsError, match=message):
        UrlLists(written(("x", kind, "block", text)))


@pytest.mark.parametrize("kind", ["domains", "expressions"])
def test_a_list_that_is_damaged_or_changes_is_named(written, kind):
    with pytest.raises(SourceError, match="is damaged"):
        UrlLists(written(("x", kind, "block", gzip.compress(b"a.example\n" * 99)[:-9])))
    (found,) = written(("x", kind, "block", "a.example\n"))
    with open(found.uri, "a") as file:
        file.write("b.example\n")
    with pytest.raises(SourceError, match="has changed"):
        UrlLists([found])


def test_takedown_beats_allow_beats_block(written, run_step):
    lists = written(
        ("adult", "domains", "block", "bad.example\n"),
        ("friends", "urls", "allow", "bad.example/good\nextra.example/good\n"),
    )
    taken = parse_takedown_list(
        b"reason: r\ndate: 2026-11-30\nentries:\n- url: http://bad.example/good/gone\n", "here"
    )
    step = FilterUrls(UrlFiltering(use_integrated_lists=False, extra_domains=("extra.example",)), lists)
    urls = [
        "bad.example/x",
        "bad.example/good/1",
        "extra.example/x",
        "extra.example/good",
        "bad.example/good/gone",
    ]
    documents = [Document(text="", id=url, metadata={"url": f"http://{url}"}) for url in urls]
    decided = run_step(step, run_step(TakeDown([taken]), documents))
    fates = [document.metadata.get(FATE) for document in decided]
    assert fates[:3] == [removed("blocklist:adult", "bad.example"), None, removed("domain", "extra.example")]
    assert fates[3] is None
    assert fates[4].reason == "takedown"


@given(url=st.text(max_size=30) | st.builds("http://{}".format, st.text("a.b@:/?&[]%é\ud800", max_size=40)))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_url_raises(tmp_path_factory, url):
    path = tmp_path_factory.getbasetemp() / "domains"
    path.write_text(DOMAINS)
    found = UrlList("x", "domains", "block", str(path), hashlib.sha256(path.read_bytes()).hexdigest())
    FilterUrls(UrlFiltering(use_integrated_lists=False), [found]).decide(
        Document(text="", id="x", metadata={"url": url})
    )
