"""The corpus report: one page that runs its own scripts, whatever the crawled texts hold."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.audit.ledger import Ledger
from tasks.reports.corpus_report import DRAW, corpus_report, json_for_html
from tasks.reports.corpus_statistics import corpus_statistics
from tasks.reports.figures import figures_of

ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "div", "strong", "span", "br",
    "code", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "script",
}  # fmt: skip
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "id", "type"}


class Page(HTMLParser):
    """Elements, attributes, script contents and visible text of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self.inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.text.append(data)

    def policy(self) -> dict[str, list[str]]:
        """The content security policy: sources by directive."""
        [content] = [a["content"] for _, a in self.elements if "http-equiv" in a]
        return {words[0]: words[1:] for part in content.split(";") if (words := part.split())}


def page_of(made: SimpleNamespace) -> Page:
    """The page as a browser gets it."""
    page = corpus_report(made.statistics, made.facts)
    return Page(page.encode("utf-8", "replace").decode())


@pytest.fixture(scope="module")
def page(hostile: SimpleNamespace) -> Page:
    """The page of hostile statistics."""
    return page_of(hostile)


def digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def test_a_hostile_text_adds_no_element_and_no_attribute(page: Page):
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    assert {name for _, attributes in page.elements for name in attributes} <= ATTRIBUTES
    assert [a.get("type") for tag, a in page.elements if tag == "script"] == ["application/json", None, None]


def test_the_policy_allows_the_pages_own_two_scripts_and_no_connection(page: Page):
    policy = page.policy()
    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == [digest(script) for script in page.scripts[1:]]
    assert page.scripts[2] == DRAW
    assert policy.keys() == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    for script in page.scripts[1:]:  # a browser changes these before it takes the digest
        assert not re.search("[\r\0]", script)


def test_a_hostile_text_is_shown_as_it_is(page: Page, hostile: SimpleNamespace):
    shown = "".join(page.text)
    expected = hostile.text.encode("utf-8", "replace").decode()
    assert expected in shown  # as the excerpt of a sample, where nothing is cut or replaced
    assert len(shown) < 10_000 + 20 * len(hostile.text)


def test_the_json_block_parses_and_has_the_figures_that_the_page_places(page: Page, hostile: SimpleNamespace):
    figures = json.loads(page.scripts[0])
    assert not re.search("[<>&]", page.scripts[0])
    assert figures.keys() == figures_of(hostile.statistics).keys()
    places = [a["id"] for tag, a in page.elements if tag == "div" and "id" in a]
    assert sorted(places) == sorted(figures)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("</script>", id="end_of_script"),
        pytest.param("<!--<script>", id="comment"),
        pytest.param("\u2028\u2029\0\ud800", id="odd_characters"),
        pytest.param({"&lt;": ["&", "<", ">", "'", '"', "\\"]}, id="names"),
    ],
)
def test_json_for_html_ends_no_element_and_keeps_the_value(value: Any):
    text = json_for_html(value)
    assert not re.search("[<>&\u2028\0]", text)
    assert json.loads(text) == value


def test_empty_statistics_have_a_page(nothing: SimpleNamespace):
    page = page_of(nothing)
    shown = " ".join(page.text)
    assert json.loads(page.scripts[0]) == {}
    assert "No clusters of duplicates." in shown
    assert "was not tokenized" in shown
    assert not [a for tag, a in page.elements if tag == "div" and "id" in a]


def test_figures_that_are_empty_have_a_page(harmless: SimpleNamespace):
    tokens = dict.fromkeys(harmless.statistics["tokens"], 0)
    tokens |= {"tokens": None, "median_tokens": None, "most_tokens": None, "by_source": {}}
    harmless.statistics["tokens"] = tokens
    for name in ("kept_samples", "removed_samples", "languages", "scores", "clusters", "domains"):
        harmless.statistics[name] = []
    assert json.loads(page_of(harmless).scripts[0]).keys() == {"funnel", "reasons", "lengths"}


def test_the_page_shows_the_numbers_of_a_run(tiny_ledger: Ledger, harmless: SimpleNamespace):
    statistics = corpus_statistics(tiny_ledger, 3, 5, 0)
    page = page_of(SimpleNamespace(statistics=statistics, facts=harmless.facts))
    shown = " ".join(page.text)
    numbers = [statistics["read"], statistics["totals"]["text_bytes"], statistics["tokens"]["tokens"]]
    numbers += [stage["read"] for stage in statistics["stages"]]
    for number in numbers:
        assert f"{number:,}" in shown
    for row in statistics["kept_samples"]:
        assert row["excerpt"] in "".join(page.text)
