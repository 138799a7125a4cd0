"""Mutated pages and character sets: whatever the bytes, a text in valid Unicode or a reason, and no hang."""

import random
import time

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from pipeline_config.curation import TextExtraction
from tasks.steps.pages.charset import decode_page
from tasks.steps.pages.extractors import engine_for, lines
from tasks.steps.pages.main_lines import line_features, page_lines
from tasks.steps.text_extraction import extract_page

BOUNDED = settings(
    max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
)
SETTINGS = TextExtraction()
BLEND = engine_for(SETTINGS)
PIECES = [
    *(
        "<p>",
        "</p>",
        "<div>",
        "</div>",
        "<a href='/x'>",
        "</a>",
        "<a>",
        "<br>",
        "<li>",
        "<ul>",
        "</ul>",
        "<pre>",
    ),
    *(
        "<h1>",
        "</h1>",
        "<table><tr><td>",
        "</table>",
        "<script>",
        "</script>",
        "<!--",
        "-->",
        "<![CDATA[",
        "]]>",
    ),
    *(
        "<svg><p>",
        "<math><mi>",
        "<template>",
        "<noscript>",
        "<textarea>",
        "<title>",
        "<frameset>",
        "<select>",
    ),
    *(
        "&lt;",
        "&#xD800;",
        "&#0;",
        "&nbsp",
        "&#x110000;",
        "&",
        "<",
        ">",
        "\x00",
        "\ue000",
        "\ue001",
        "\ufeff",
        "\u202e",
    ),
    *("The harbour lies quiet, and the boats are out. ", "日本語の文。", "Съешь же ещё, ", "\n", "\t", " "),
    *(
        "<base href='\x01'>",
        "<meta charset=utf-7>",
        "<?xml version='1.0' encoding='utf-16'?>",
        "<main hidden>",
    ),
    *(
        "<article class='comment'>",
        "<nav>",
        "</body>",
        "</html>",
        "<body>",
        "<html lang=''>",
        "<p <p <p",
        "='\"'",
    ),
]
CHARSETS = [
    "utf-8",
    "cp1252",
    "utf-16",
    "utf-16-be",
    "utf-7",
    "koi8-r",
    "euc-jp",
    "shift_jis",
    "gb18030",
    "utf-32",
]
markup = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


def holds(payload: bytes, content_type: str = "") -> None:
    """The promise that every page is kept to."""
    found = extract_page((payload, content_type), BLEND, SETTINGS)
    assert found.outcome
    assert found.text.encode("utf-8").decode() == found.text
    assert "\x00" not in found.text
    assert bool(found.text) == (found.outcome == "text")


@seed(1)
@BOUNDED
@given(markup, st.sampled_from(CHARSETS), st.sampled_from(["", *CHARSETS]), st.integers(0, 3))
def test_any_markup_in_any_charset_has_an_outcome(page, written, declared, cut):
    payload = page.encode(written, "replace")
    holds(payload[: len(payload) - cut], f"text/html; charset={declared}" if declared else "")


@seed(2)
@BOUNDED
@given(st.binary(max_size=400), st.text(max_size=40))
def test_any_bytes_with_any_header_have_an_outcome(payload, content_type):
    holds(payload, content_type)


@seed(3)
@BOUNDED
@given(markup, st.randoms(use_true_random=False))
def test_flipped_bytes_have_an_outcome(page, choose):
    payload = bytearray(("<html><body>" + page * 3).encode())
    for _ in range(choose.randint(1, 20)):
        payload[choose.randrange(len(payload))] = choose.randrange(256)
    holds(bytes(payload))


@seed(4)
@BOUNDED
@given(markup)
def test_features_are_finite_and_the_same_twice(page):
    found = page_lines(decode_page(page.encode("utf-8", "replace")).text)
    if found:
        features = line_features(found)
        assert features.shape[0] == len(found)
        assert abs(features).max() < 1e6
    assert lines(page) == lines(page)


@pytest.mark.parametrize(
    "piece", ["<", "&", "<a>", "<a href='", "<b><p>", "<!--", "<a href=x>", "</p>", "<select>", "<p a='>'>"]
)
def test_a_piece_repeated_takes_time_in_proportion(piece):
    """Twenty thousand of anything, below all limits, is done in two seconds of CPU time."""
    page = f"<html><body><p>{'The harbour lies quiet. ' * 40}</p>{piece * 20_000}"
    started = time.thread_time()
    holds(page.encode())
    assert time.thread_time() - started < 2


def test_shuffled_pieces_of_a_page_have_an_outcome():
    choose = random.Random(5)
    for _ in range(30):
        holds("".join(choose.choices(PIECES, k=300)).encode("utf-8", "replace"))
