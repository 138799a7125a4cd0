"""Hostile values in Markdown stay characters: no tag, no link, no image, no cell, no escape sequence."""

import html.parser
import re

import pytest
from markdown_it import MarkdownIt

from tasks.markup import as_text, block, escaped, plain, table, table_of

RENDER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
AUTOLINK = re.compile(r"(https?|ftp)://|www\.|\w@\w", re.IGNORECASE)  # GitHub's, in Prefect's pages
TERMINAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CELLS = ("td", "th", "code")
TABLE_TAGS = {"table", "thead", "tbody", "tr", "th", "td"}
HOSTILE = [
    pytest.param("<b>bold</b>", id="HTML"),
    pytest.param("<script>alert(1)</script>", id="script"),
    pytest.param("<img src=x onerror=alert(1)>", id="image with handler"),
    pytest.param("<!-- comment", id="HTML comment"),
    pytest.param("</td></tr></table><h1>out", id="ends the table"),
    pytest.param("&lt;b&gt; &amp; &#60;i&#62; &#x3c;", id="character references"),
    pytest.param("[text](javascript:alert(1))", id="link"),
    pytest.param("![alt](https://evil.example/pixel.png)", id="image"),
    pytest.param("[text][ref]\n\n[ref]: https://evil.example", id="reference link"),
    pytest.param("<https://evil.example>", id="autolink"),
    pytest.param("https://evil.example/ and WWW.evil.example and a@evil.example", id="bare links"),
    pytest.param("a | b | c\n|---|---|\n| x |", id="table"),
    pytest.param("\\| a \\\\| b", id="escaped pipes"),
    pytest.param("`code` ``` fence\n```html\n<b>\n```", id="code fences"),
    pytest.param("~~~\n~~gone~~", id="tildes"),
    pytest.param("*a* **b** _c_ __d__ ***", id="emphasis"),
    pytest.param("# heading\n===\n---\n> quote\n- list\n1. one", id="blocks"),
    pytest.param("a\nb\r\nc\rd\u2028e\u2029f\x85g", id="line breaks"),
    pytest.param("nul \x00 bell \x07 escape \x1b[31m delete \x7f csi \x9b2J", id="control characters"),
    pytest.param("\u202egnp.exe\u202c \u2066x\u2069 \u200f\u061c", id="bidi"),
    pytest.param("lone \ud800 and \udfff", id="lone surrogates"),
    pytest.param("$x^2$ $$y$$ :smile: @user #1", id="extensions"),
    pytest.param("   spaces\taround   ", id="white space"),
    pytest.param("x" * 100_000, id="100 kB"),
    pytest.param("|<b>`" * 20_000, id="100 kB of marks"),
    pytest.param("'; DROP TABLE documents; --", id="SQL"),
    pytest.param("", id="empty"),
]


class Page(html.parser.HTMLParser):
    """What a browser would see: tags with their attributes, and the text of each cell or code block."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in CELLS:
            self.texts.append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in CELLS

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[-1] += data


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_is_one_cell_that_shows_its_characters(value: str):
    page = Page(RENDER.render(table(["name", "value"], [["before", value], [value, "after"]])))
    assert set(page.tags) == TABLE_TAGS
    assert page.attributes == []
    cells = [text.strip() for text in page.texts]
    shown = plain(value).strip()
    assert cells == ["name", "value", "before", shown, shown, "after"]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_makes_nothing_in_a_paragraph_or_heading(value: str):
    page = Page(RENDER.render(f"# Title {escaped(value)}\n\nText {escaped(value)}"))
    assert page.tags == ["h1", "p"]


@pytest.mark.parametrize("value", HOSTILE)
def test_nothing_of_a_value_acts_on_a_reader_or_a_terminal(value: str):
    assert AUTOLINK.search(escaped(value)) is None
    for shown in (escaped(value), as_text(escaped(value)), block(value), as_text(block(value))):
        assert TERMINAL.search(shown) is None
        shown.encode("utf-8")
    assert "\n" not in escaped(value)


@pytest.mark.parametrize("value", HOSTILE)
def test_as_text_gives_the_characters_back(value: str):
    assert as_text(escaped(value)) == plain(value)
    assert as_text(block(value)) == block(value)


@pytest.mark.parametrize("value", [param for param in HOSTILE if param.id != "empty"])
def test_a_block_ends_where_its_text_ends(value: str):
    page = Page(RENDER.render(f"before\n\n{block(value, 10**6)}\n\nafter"))
    assert page.tags == ["p", "pre", "code", "p"]
    code = page.texts[0]
    visible = [line.removeprefix("    ") for line in block(value, 10**6).split("\n")]
    assert [line for line in code.split("\n") if line] == [line for line in visible if line]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("&#27;[2J", id="reference to an escape"),
        pytest.param("&#99999999999;", id="reference to no character"),
        pytest.param("&#42;", id="reference that we make, too"),
    ],
)
def test_references_in_a_text_are_characters_of_it(text: str):
    page = f"# Title\n\n{block(text)}\n\n{escaped(text)}"
    assert as_text(page) == f"# Title\n\n    {text}\n\n{text}"


def test_what_is_cut_says_how_long_it_was():
    assert plain("ab" * 200, most=4) == "abab… (400 characters)"
    assert block("ab" * 5000, most=4) == "    abab…\n    (10,000 characters)"
    assert plain("abab", most=4) == "abab"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param(None, "", id="nothing"),
        pytest.param(1234567, "1,234,567", id="integer"),
        pytest.param(0.123456789, "0.123457", id="float"),
        pytest.param(True, "True", id="boolean"),
        pytest.param("1234567", "1234567", id="digits in a text"),
    ],
)
def test_numbers_are_shown_readably(value: object, shown: str):
    assert plain(value) == shown


def test_a_table_of_dictionaries_has_the_named_columns_and_says_when_it_is_empty():
    rows = [{"a": 1, "b": 2}, {"a": 3}]
    assert table_of(rows, "b", "a").splitlines() == ["| b | a |", "|---|---|", "| 2 | 1 |", "|  | 3 |"]
    assert table_of(rows).splitlines()[0] == "| a | b |"
    assert table_of([]) == "*none*"
