"""From a record to its main text: payloads, character sets, and pages that fail alone."""

import os
import random
import resource

import lxml.html
import pytest
from datatrove.data import Document

from pipeline_config.curation import LanguagePrefilter, TextExtraction
from tasks.steps.pages import extractors
from tasks.steps.shards import FATE, NOTES
from tasks.steps.text_extraction import ExtractText
from tasks.steps.urls.signals import signals
from tasks.steps.warc.ranges import PAYLOAD

GOLDEN = "da2255de8c4d4eec8921d5d4890d9d5968451c11f0ab2272d922d58c49d17d7c"
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация юга. " * 3


def html(body: str) -> bytes:
    return (
        f"<html><head><title>Page</title></head><body><nav><a href='/'>Home</a></nav>"
        f"<article><h1>Title</h1>{body}</article><footer>Imprint</footer></body></html>"
    ).encode()


def paragraphs(*texts: str) -> bytes:
    return html("".join(f"<p>{text}</p>" for text in texts))


def with_payload(identity: str, payload: bytes, content_type: str = "text/html") -> Document:
    return Document(text="", id=identity, metadata={PAYLOAD: (payload, content_type)})


@pytest.fixture(scope="module")
def extract(run_step):
    """Runs pages through the step; `id -> (text, fate)`."""

    def run(pages: dict[str, bytes], **settings) -> dict[str, tuple[str, tuple[str, str] | None]]:
        documents = [with_payload(identity, payload) for identity, payload in pages.items()]
        done = run_step(ExtractText(TextExtraction(**settings)), documents)
        fates = [document.metadata.get(FATE) for document in done]
        return {
            document.id: (document.text, fate and (fate.kind, fate.reason))
            for document, fate in zip(done, fates, strict=True)
        }

    return run


def test_the_main_text_is_kept_and_the_furniture_is_not(extract, prose):
    text, fate = extract({"page": paragraphs(prose(4), prose(4, seed=1))})["page"]
    assert fate is None
    assert prose(4).split("\n")[0] in text
    assert "Imprint" not in text
    assert "Home" not in text


@pytest.mark.parametrize(
    ("payload", "fate"),
    [
        pytest.param(b"", ("removed", "no_text"), id="empty"),
        pytest.param(b"<html><body></body></html>", ("removed", "no_text"), id="no_body"),
        pytest.param(bytes(range(32)) * 9, ("failed", "undecodable"), id="undecodable"),
        pytest.param(b"<div>" * 3000, ("failed", "too_deep"), id="deep"),
        pytest.param(b"<div " + b"a " * 20_000 + b">x", ("failed", "too_many_attributes"), id="attributes"),
        pytest.param(b"<p>" * 600_000, ("failed", "too_many_tags"), id="tags"),
    ],
)
def test_a_page_without_text_has_its_own_fate(extract, payload, fate):
    assert extract({"page": payload}) == {"page": ("", fate)}


def test_a_text_does_not_depend_on_the_pages_before_it(extract, prose):
    pages = {str(n): paragraphs(prose(4), prose(6, seed=n % 3), prose(4)) for n in range(9)}
    together = extract(pages)
    assert together == {name: extract({name: page})[name] for name, page in list(pages.items())[:3]} | {
        name: together[str(int(name) % 3)] for name in pages
    }


def test_a_page_that_takes_too_long_fails_with_its_reason(extract, prose):
    slow = paragraphs(*[prose(4, seed=n) for n in range(3000)])
    pages = {"slow": slow, "next": paragraphs(prose(6))}
    done = extract(pages, page_cpu_seconds=0.1, engine="trafilatura", fall_back=False)
    assert done["slow"] == ("", ("failed", "cpu_limit"))
    assert done["next"][1] is None


def test_kept_documents_name_the_extractor_and_carry_no_payload(run_step, prose):
    page = paragraphs(prose(20), prose(20, seed=1))
    [document] = run_step(ExtractText(TextExtraction()), [with_payload("a", page)])
    noted = signals((), page) | {"charset": "utf-8", "charset_found_by": "bytes"}
    noted |= {"extractor": "lines", "text_characters": len(document.text)}
    assert document.metadata == {"extractor": "lines", NOTES: noted}


def test_what_a_page_says_about_its_use_is_heeded_by_setting(extract, prose):
    page = b"<meta name=robots content=noai>" + paragraphs(prose(30))
    assert extract({"a": page})["a"][1] is None
    assert extract({"a": page}, obey_signals=("noai",))["a"] == ("", ("removed", "signal"))


@pytest.mark.parametrize(
    ("engine", "extractor"),
    [("blend", "lines"), ("lines", "lines"), ("resiliparse", "resiliparse"), ("trafilatura", "trafilatura")],
)
def test_each_engine_finds_an_article_and_is_named(run_step, prose, engine, extractor):
    page = paragraphs(*[prose(6, seed=n) for n in range(5)])
    [document] = run_step(ExtractText(TextExtraction(engine=engine)), [with_payload("a", page)])
    assert document.metadata["extractor"] == extractor
    assert all(line in document.text for n in range(5) for line in prose(6, seed=n).split("\n")[:1])
    assert "Imprint" not in document.text


def test_a_page_of_few_words_goes_to_the_careful_engine(run_step, prose):
    [document] = run_step(ExtractText(TextExtraction()), [with_payload("a", paragraphs(prose(2)))])
    assert document.metadata["extractor"] == "trafilatura"


def test_the_classes_of_elements_change_no_text(prose, monkeypatch):
    """Trafilatura's texts with its own parser, which has classes for the elements of forms."""
    pieces = [
        "<form action=/x>",
        "<input value=a>",
        "<select><option>b",
        "<label for=c>",
        "<textarea>d",
        "</form>",
    ]
    pieces += [
        "<a href=/e>f</a>",
        "<li>",
        "<table><tr><td>",
        "<p>",
        "</p>",
        *(prose(2, seed=n) for n in range(6)),
    ]
    choose = random.Random(6)
    pages = [f"<html><body>{''.join(choose.choices(pieces, k=60))}" for _ in range(40)]
    settings = TextExtraction()
    ours = [extractors._trafilatura(page, settings).text for page in pages]
    theirs = lxml.html.HTMLParser(
        collect_ids=False, default_doctype=False, encoding="utf-8", remove_comments=True, remove_pis=True
    )
    monkeypatch.setattr("trafilatura.utils.HTML_PARSER", theirs)
    assert [extractors._trafilatura(page, settings).text for page in pages] == ours
    assert sum(map(bool, ours)) > 20


def test_a_page_that_breaks_the_careful_engine_falls_back(run_step, prose, monkeypatch):
    """A page that kills trafilatura's child twice gets the fast engine's text; the next page is safe."""
    real = extractors._trafilatura
    killer = lambda page, settings: os._exit(1) if "deadly" in page else real(page, settings)  # noqa: E731
    monkeypatch.setattr(extractors, "_trafilatura", killer)
    pages = [paragraphs("deadly " + prose(20)), paragraphs(prose(20))]
    settings = TextExtraction(engine="trafilatura")
    first, second = run_step(
        ExtractText(settings), [with_payload("a", pages[0]), with_payload("b", pages[1])]
    )
    assert (first.metadata["extractor"], first.metadata.get(FATE)) == ("lines", None)
    assert second.metadata["extractor"] == "trafilatura"


def test_a_page_too_large_for_the_careful_engine_is_not_given_to_it(run_step, prose):
    settings = TextExtraction(engine="trafilatura", careful_max_tags=10)
    [document] = run_step(ExtractText(settings), [with_payload("a", paragraphs(*[prose(6)] * 20))])
    assert document.metadata["extractor"] == "lines"


def test_the_language_prefilter_removes_pages_before_the_careful_engine(run_step, prose):
    settings = TextExtraction(engine="trafilatura", language_prefilter=LanguagePrefilter(languages=("en",)))
    russian = f"<html><body><article><p>{RUSSIAN * 3}</p></article></body></html>".encode()
    english = paragraphs(*[prose(6, seed=n) for n in range(5)])
    kept, gone, empty = run_step(
        ExtractText(settings),
        [with_payload("en", english), with_payload("ru", russian), with_payload("none", b"<p></p>")],
    )
    assert (kept.metadata.get(FATE), empty.metadata[FATE].reason) == (None, "no_text")
    fate = gone.metadata[FATE]
    assert (fate.kind, fate.reason) == ("removed", "language")
    assert fate.value.startswith("ru 0.9")
    assert ", en 0.0" in fate.value


def test_a_text_longer_than_its_page_allows_fails(extract, prose):
    page = paragraphs(*[prose(6, seed=n) for n in range(5)])
    assert extract({"a": page}, max_output_ratio=0.5)["a"] == ("", ("failed", "output_ratio"))


HOSTILE = {
    "divs_inside_each_other": (b"<div>" * 400_000, "too_deep"),
    "attributes": (b"<div " + b"a=1 " * 1_000_000 + b">", "too_many_attributes"),
    "attributes_without_values": (b"<div " + b"a " * 1_000_000 + b">", "too_many_attributes"),
    "elements": (b"<p>x" * 600_000, "too_many_tags"),
    "links": (b"<a href=/x>a link</a> " * 200_000, None),
    "lists_inside_each_other": (b"<ul><li>" * 100_000, "too_deep"),
    "tables_inside_each_other": (b"<table><tr><td>" * 100_000, "too_deep"),
    "less_than_signs": (b"<" * 2_000_000, "too_many_tags"),
    "line_breaks": (b"x<br>" * 200_000, None),
    "one_long_word": (b"x" * 5_000_000, None),
    "surrogates": (b"&#xD800;" * 1000, None),
    "zeros": (b"x\x00" * 20, None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_page_has_a_text_or_a_reason_within_its_limits(run_step, prose, name):
    """CPU time of the step and its child is bounded, and so is the child's memory."""
    piece, reason = HOSTILE[name]
    payload = b"<html><body>" + paragraphs(prose(30)) + piece
    before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    settings = TextExtraction(page_memory_bytes=600_000_000)
    document, after = run_step(
        ExtractText(settings), [with_payload("hostile", payload), with_payload("next", paragraphs(prose(30)))]
    )
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    fate = document.metadata.get(FATE)
    assert (fate and fate.reason) == reason
    assert prose(30).split("\n")[0] in (document.text if reason is None else after.text)
    assert after.metadata["extractor"] == "lines"
    assert sum(now.ru_utime - then.ru_utime for now, then in zip(used, before, strict=True)) < 10


def test_texts_do_not_depend_on_batches_or_order(extract, prose):
    pages = {str(n): paragraphs(*[prose(4, seed=n * 7 + k) for k in range(n % 5)]) for n in range(40)}
    assert extract(pages) == extract(dict(reversed(pages.items())))


def test_golden(run_step, behaviour, prose):
    pages = {
        "article": paragraphs(*[prose(6, seed=n) for n in range(6)]),
        "short": paragraphs(prose(6), prose(6, seed=1)),
        "list": html("<ul>" + "".join(f"<li>{prose(1, seed=n)}</li>" for n in range(6)) + "</ul>"),
        "table": html(f"<table><tr><td>{prose(2)}</td><td>{prose(2, seed=2)}</td></tr></table>"),
        "russian": f"<html><body><article><p>{RUSSIAN}</p></article></body></html>".encode("windows-1251"),
        "empty": b"",
        "undecodable": bytes(range(32)) * 9,
    }
    done = run_step(ExtractText(TextExtraction()), [with_payload(*page) for page in pages.items()])
    assert behaviour(done) == GOLDEN, "behaviour changed: raise the version in tasks/text_extraction.py"
