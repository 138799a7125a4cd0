"""The sample crawl: documentation of modules, as pages, as records of a crawl."""

import ast
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from datatrove.data import Document
from lxml import html as lxml_html

from pipeline_config.settings import SampleCrawl
from tasks.steps.sample_crawl import (
    MODULE_PATH,
    ReadModules,
    RenderModule,
    WriteCrawl,
    docstrings,
    installed_modules,
    render_page,
    warc_record,
)
from tasks.steps.shards import FATE
from tasks.steps.warc.pointers import read_pointers
from tasks.steps.warc.records import read_record

GOLDEN = "9a31a7cff072feab010d573c1728df8bfa8bfac625c5f1bd53dda03fa63ac436"
EVIL = [
    '<script>alert("x")</script> & </p>',
    "    >>> a <b> c",
    "- <b>item</b>\n- two",
    "<i>Title</i>\n===\nx",
]
SNIPPET = '''
"""The module."""
def plain():
    """  A function
      with a second line."""
class Outer:
    """The outer class."""
    async def method(self):
        """A method."""
        def inner():
            """Inside."""
    class Inner:
        """Nested."""
def bare(): ...
"not a docstring"
'''
FOUND = [
    ("", "The module."),
    ("plain", "A function\nwith a second line."),
    ("Outer", "The outer class."),
    ("Outer.method", "A method."),
    ("Outer.method.inner", "Inside."),
    ("Outer.Inner", "Nested."),
]
ALL = SampleCrawl(min_docstring_characters=1)


@pytest.fixture
def module(tmp_path):
    """Writes a module's source; returns the document that stands for it."""

    def write(source: str | bytes, name: str = "package.module") -> Document:
        path = tmp_path / f"{name}.py"
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        url = f"https://pydoc.example/{name}.html"
        return Document(text="", id=name, metadata={"url": url, "file_path": name, MODULE_PATH: str(path)})

    return write


def test_docstrings_are_found_with_their_qualified_names():
    assert docstrings(SNIPPET, 1) == FOUND


def test_short_docstrings_are_left_out_before_they_are_cleaned():
    assert [name for name, _ in docstrings(SNIPPET, 12)] == ["plain", "Outer"]
    assert docstrings("x = 1", 1) == docstrings("", 1) == []


def test_nothing_of_a_module_is_run(tmp_path):
    source = f"'''Doc.'''\nopen({str(tmp_path / 'mark')!r}, 'w')\nraise SystemExit"
    assert docstrings(source, 1) == [("", "Doc.")]
    assert not (tmp_path / "mark").exists()


def test_all_text_of_a_page_is_escaped():
    page = lxml_html.fromstring(render_page("<u>.mod", [("<s>", "\n\n".join(EVIL))]))
    article = page.find(".//article")
    assert {node.tag for node in article.iter()} <= {
        *("article", "h1", "h2", "h3", "section"),
        *("p", "pre", "ul", "li"),
    }
    for text in (EVIL[0], ">>> a <b> c", "<b>item</b>", "<i>Title</i>", "<u>.mod", "<s>"):
        assert text in article.text_content()


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        pytest.param("Words.\nMore.", ["p"], id="paragraph"),
        pytest.param("One.\n\nTwo.", ["p", "p"], id="paragraphs"),
        pytest.param(">>> f(1)\n...", ["pre"], id="example"),
        pytest.param("    code\n\ttabs", ["pre"], id="indented"),
        pytest.param("- one\n- two\n  more", ["ul", "li", "li"], id="list"),
        pytest.param("* one\n* two", ["ul", "li", "li"], id="starred_list"),
        pytest.param("Notes\n-----\nText.", ["h3", "p"], id="heading"),
        pytest.param("Notes\n=====", ["h3"], id="heading_alone"),
        pytest.param("\n\n \n\n", [], id="blank"),
    ],
)
def test_a_docstring_becomes_blocks(text, tags):
    section = lxml_html.fromstring(render_page("a.b", [("", text)])).find(".//section")
    assert [node.tag for node in section.iter()] == ["section", "h2", *tags]


def test_no_word_of_a_documentation_is_lost():
    for name, text in docstrings(Path(ast.__file__).read_text("utf-8"), 1):
        page = lxml_html.fromstring(render_page("ast", [(name, text)]))
        words = page.find(".//article").text_content().split()
        assert [w for w in text.split() if w.strip("-=~^*") and w not in words] == []


def test_a_page_links_to_its_parent_and_its_parts():
    page = lxml_html.fromstring(render_page("a.b.c", [("", "doc"), ("f", "doc"), ("g", "doc")]))
    links = [link.get("href") for link in page.iter("a")]
    assert links[2:5] == ["/a.b.html", "#f", "#g"]
    assert lxml_html.fromstring(render_page("top", [])).xpath("//nav/a[3]/@href") == ["/"]


def test_a_record_has_the_same_bytes_every_time():
    one, other = (warc_record("https://a.example/é", b"<p>hello</p>") for _ in range(2))
    assert one == other
    assert one[4:8] == bytes(4)  # no time in the gzip header
    assert one != warc_record("https://a.example/f", b"<p>hello</p>")


@pytest.mark.parametrize("html", [b"", b"<p>hello</p>", "é".encode() * 100_000, b"WARC/1.0\r\n\r\n\0"])
def test_a_record_is_read_back_by_the_stages_that_follow(tmp_path, html):
    record = warc_record("https://a.example/x", html)
    (tmp_path / "a.warc.gz").write_bytes(record)
    [pointer] = read_pointers(str(tmp_path / "a.warc.gz"))
    assert (pointer["url"], pointer["warc_length"]) == ("https://a.example/x", len(record))
    found = read_record(record)
    assert (found.payload, found.content_type) == (html, "text/html; charset=utf-8")
    assert gzip.decompress(record).endswith(html + b"\r\n\r\n")


def test_installed_modules_are_found_once_in_an_order_that_does_not_change():
    modules = installed_modules()
    names = [module.name for module in modules]
    assert len(set(names)) == len(names) > 1000
    assert names == [module.name for module in installed_modules()] != sorted(names)
    assert {"json", "json.decoder", "pytest", "datatrove.data"} <= set(names)
    assert not [name for name in names if ".tests." in name]


def test_the_reader_yields_a_document_for_each_module(run_step):
    documents = run_step(ReadModules())
    assert [document.id for document in documents] == [module.name for module in installed_modules()]
    assert documents[0].metadata["url"] == f"https://pydoc.example/{documents[0].id}.html"


@pytest.mark.parametrize(
    ("source", "fate"),
    [
        pytest.param(SNIPPET, None, id="documented"),
        pytest.param("x = 1", ("removed", "undocumented"), id="undocumented"),
        pytest.param("def", ("failed", "not_python"), id="syntax_error"),
        pytest.param(b"'\xff'", ("failed", "not_python"), id="not_utf-8"),
        pytest.param("'''a\0b'''", ("failed", "not_python"), id="nul_byte"),
        pytest.param("'''A lone \\ud800 surrogate.'''", None, id="lone_surrogate"),
        pytest.param("(" * 5000 + ")" * 5000, ("failed", "not_python"), id="deep_nesting"),
    ],
)
def test_a_module_has_a_page_or_a_fate(module, run_step, source, fate):
    [document] = run_step(RenderModule(ALL), [module(source)])
    found = document.metadata.get(FATE)
    assert (found and (found.kind, found.reason)) == fate
    assert bool(document.text) is (fate is None)
    document.text.encode()


def test_rendering_ends_when_there_is_text_enough(module, run_step):
    source = "'''" + "x" * 6000 + "'''"
    made = [module(source, f"m{number}") for number in range(5)]
    settings = SampleCrawl(max_text_bytes=10_000)
    assert [document.id for document in run_step(RenderModule(settings), made)] == ["m0", "m1"]


def pages_of(folder) -> dict[str, list[str]]:
    return {
        path.name: [pointer["url"].rsplit("/", 1)[1] for pointer in read_pointers(str(path))]
        for path in sorted((folder / "warc").iterdir())
    }


def test_pages_go_round_robin_to_the_files_and_the_books_balance(tmp_path, run_step, module):
    sources = [SNIPPET, "x = 1", SNIPPET, "def", SNIPPET]
    made = [module(source, f"m{number}") for number, source in enumerate(sources)]
    run_step(WriteCrawl(str(tmp_path), 2), run_step(RenderModule(ALL), made))
    assert pages_of(tmp_path) == {
        "documentation-00000.warc.gz": ["m0.html", "m4.html"],
        "documentation-00001.warc.gz": ["m2.html"],
    }
    books = json.loads((tmp_path / "shards/00000.json").read_text())
    assert (books["read"], books["kept"]) == (5, 3)
    assert (books["removed"], books["failed"]) == ({"undocumented": 1}, {"not_python": 1})
    lost = pq.read_table(tmp_path / "removed/part-00000.parquet")["id"].to_pylist()
    assert lost == ["m1", "m3"]


def test_there_is_no_file_without_a_page(tmp_path, run_step, module):
    run_step(WriteCrawl(str(tmp_path), 4), run_step(RenderModule(ALL), [module(SNIPPET)]))
    assert list(pages_of(tmp_path)) == ["documentation-00000.warc.gz"]


def test_golden(module, run_step, behaviour):
    sources = {"package.module": SNIPPET, "bare": "x = 1", "broken": "def"}
    documents = run_step(RenderModule(ALL), [module(source, name) for name, source in sources.items()])
    for document in documents:
        del document.metadata[MODULE_PATH]
        if not document.text:  # the wording of a syntax error is Python's
            document.metadata[FATE] = replace(document.metadata[FATE], value="")
    assert behaviour(documents) == GOLDEN, "behaviour changed: raise the version in tasks/sample_crawl.py"
