"""What a page's owner says about its use, from the header and the head of the page."""

import time

import pyarrow as pa
import pytest
from datatrove.data import Document
from fastwarc.warc import WarcHeaderMap
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.steps.shards import NOTES, removed
from tasks.steps.urls.signals import SIGNAL_NOTES, note_signals, signals

SILENT = dict.fromkeys(field.name for field in SIGNAL_NOTES)


def robots(content: str, name: str = "robots") -> str:
    return f'<html><head><meta name="{name}" content="{content}"></head><body>'


@pytest.mark.parametrize(
    ("headers", "html", "found"),
    [
        pytest.param({}, "", {}, id="nothing"),
        pytest.param({}, robots("NoAI, noimageai"), {"robots": "noai,noimageai"}, id="meta"),
        pytest.param({}, robots("noindex", "GoogleBot"), {"robots": "googlebot:noindex"}, id="one crawler"),
        pytest.param({}, robots("noindex", "description"), {}, id="another meta"),
        pytest.param({}, robots("none"), {"robots": "nofollow,noindex"}, id="none"),
        pytest.param({}, "<META CONTENT=noarchive NAME=robots>", {"robots": "noarchive"}, id="no quotes"),
        pytest.param({}, "<meta name='robots' content='a&#x6d;p'>", {"robots": "amp"}, id="entities"),
        pytest.param(
            {}, "<meta name=robots data-a='>' content=noai>", {"robots": "noai"}, id="bracket in it"
        ),
        pytest.param({}, "<!-- <meta name=robots content=noai> -->", {}, id="comment"),
        pytest.param({}, "<script>'<meta name=robots content=noai>'</script>", {}, id="script"),
        pytest.param({}, "<body><meta name=robots content=noai>", {}, id="body"),
        pytest.param({"x-robots-tag": "noindex, noai"}, "", {"robots": "noai,noindex"}, id="header"),
        pytest.param(
            [("X-Robots-Tag", "otherbot: noindex, nofollow"), ("X-ROBOTS-TAG", b"noai")],
            "",
            {"robots": "noai,otherbot:nofollow,otherbot:noindex"},
            id="two headers",
        ),
        pytest.param(
            {"X-Robots-Tag": "unavailable_after: 25 Jun 2030 15:00:00 PST, max-snippet: 20"},
            "",
            {"robots": "max-snippet:20,unavailable_after"},
            id="values",
        ),
        pytest.param({"tdm-reservation": "1"}, "", {"tdm_reservation": True}, id="reserved"),
        pytest.param(
            {"TDM-Reservation": "0"},
            robots("1", "tdm-reservation"),
            {"tdm_reservation": False},
            id="header 1st",
        ),
        pytest.param({"tdm-reservation": "yes"}, "", {}, id="no value of the protocol"),
        pytest.param(
            {},
            robots("1", "tdm-reservation") + robots("https://a.example/p", "tdm-policy"),
            {"tdm_reservation": True},
            id="behind the body",
        ),
        pytest.param(
            {"tdm-policy": "https://a.example/p"}, "", {"tdm_policy": "https://a.example/p"}, id="p"
        ),
        pytest.param({"Content-Language": "de-CH, en"}, "", {"content_language": "de-CH,en"}, id="language"),
        pytest.param({}, "<!doctype html><HTML class=x LANG='fr'>", {"html_lang": "fr"}, id="lang"),
        pytest.param({}, b"<html lang=\xff><meta name=robots content=noai>", {"robots": "noai"}, id="bytes"),
    ],
)
def test_signals_are_read(headers, html, found):
    assert signals(headers, html) == SILENT | found


def test_the_header_of_a_record_is_read_with_all_its_fields():
    fields = WarcHeaderMap()
    fields.append("X-Robots-Tag", "noai")
    fields.append("X-Robots-Tag", "noindex")
    assert signals(fields, "")["robots"] == "noai,noindex"


@pytest.mark.parametrize(
    ("headers", "obeyed", "agents", "fate"),
    [
        ({"X-Robots-Tag": "noai"}, (), (), None),
        ({"X-Robots-Tag": "noai"}, ("noindex", "noai"), (), removed("signal", "noai")),
        ({"X-Robots-Tag": "ccbot: noai"}, ("noai",), (), None),
        ({"X-Robots-Tag": "ccbot: noai"}, ("noai",), ("CCBot",), removed("signal", "ccbot:noai")),
        ({"tdm-reservation": "1"}, ("tdm-reservation",), (), removed("signal", "tdm-reservation")),
        ({"tdm-reservation": "0"}, ("tdm-reservation",), (), None),
    ],
)
def test_signals_are_always_recorded_and_obeyed_by_setting(headers, obeyed, agents, fate):
    document = Document(text="", id="x")
    assert note_signals(document, headers, "", obeyed, agents) == fate
    assert document.metadata[NOTES] == signals(headers, "")


PIECE = st.sampled_from(
    ["<meta ", "<html ", "name=", "content=", "'", '"', "robots", "noai", ">", "<!--", "-->", "=", ":", ","]
) | st.text(max_size=4)


@given(st.lists(PIECE, max_size=30).map("".join), st.lists(PIECE, max_size=8).map("".join))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_whatever_a_page_says_can_be_written(html, value):
    found = signals({"X-Robots-Tag": value, "Content-Language": value, "tdm-policy": value}, html)
    pa.Table.from_pylist([found], schema=pa.schema(SIGNAL_NOTES))


@pytest.mark.parametrize(
    "part", ["<meta ", "<meta a='", "<!--", "<script>", '<meta "', "a=", "<meta a=" * 3, "&#"]
)
def test_a_hostile_head_takes_time_in_proportion(part):
    began = time.thread_time()
    signals({"X-Robots-Tag": "," * 100_000}, f"<meta {part * 100_000}")
    assert time.thread_time() - began < 10
