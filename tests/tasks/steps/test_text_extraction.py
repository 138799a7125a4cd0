"""From a record to its main text: payloads, character sets, and pages that fail alone."""

import pytest
from datatrove.data import Document

from pipeline_config.curation import TextExtraction
from tasks.steps.record_ranges import PAYLOAD
from tasks.steps.shards import FATE
from tasks.steps.text_extraction import ExtractText, decode_page

GOLDEN = "d8fea036994ed78deff64aa1ba11b350599cf1d47b261fdd41ecf00ff2f6bff6"
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация юга. " * 3
JAPANESE = "いろはにほへと ちりぬるを。日本語の文章を判定するための例文です。東京は日本の首都です。" * 3
CHINESE = "中文文本的字符集检测需要足够多的汉字。北京是中华人民共和国的首都，是全国的文化中心。" * 3
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy. Nechť již hříšné saxofony rozezvučí síň tóny waltzu. " * 3
POLISH = "Zażółć gęślą jaźń. Pchnąć w tę łódź jeża lub ośm skrzyń fig. Szczebrzeszyn z tego słynie. " * 3
META = b'<meta charset="iso-8859-15"><p>\xe9'


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


@pytest.mark.parametrize(
    ("text", "charset"),
    [
        pytest.param("naïve – “quoted”", "utf-8", id="utf-8"),
        pytest.param("plain", "ascii", id="ascii"),
        pytest.param("", "utf-8", id="empty"),
        pytest.param(RUSSIAN, "windows-1251", id="windows-1251"),
        pytest.param(RUSSIAN, "koi8-r", id="koi8-r"),
        pytest.param(JAPANESE, "shift_jis", id="shift_jis"),
        pytest.param(JAPANESE, "euc-jp", id="euc-jp"),
        pytest.param(CHINESE, "gb18030", id="gb18030"),
        pytest.param(CHINESE.replace("中华人民共和国", "中國"), "gbk", id="gbk"),
        pytest.param(CZECH, "iso-8859-2", id="iso-8859-2_czech"),
        pytest.param(POLISH, "iso-8859-2", id="iso-8859-2_polish"),
        pytest.param(RUSSIAN, "utf-16", id="utf-16_with_mark"),
        pytest.param(RUSSIAN, "utf-32", id="utf-32_with_mark"),
        pytest.param("plain ascii text " * 9, "utf-16", id="utf-16_of_ascii"),
    ],
)
def test_a_character_set_is_found_without_being_declared(text, charset):
    assert decode_page(text.encode(charset)) == text


@pytest.mark.parametrize(
    ("payload", "content_type", "text"),
    [
        pytest.param(b"\xe9", "text/html; charset=latin-1", "é", id="header"),
        pytest.param(b"\xe9", 'text/html; charset="windows-1251"', "й", id="quoted"),
        pytest.param(b"\xe9", "text/html; Charset = iso-8859-7;x=y", "ι", id="spaces_and_case"),
        pytest.param(META[-1:], "text/html", None, id="nothing_declared"),
        pytest.param(META, "text/html", META.decode("iso-8859-15"), id="meta"),
        pytest.param(b"\xe9", "text/html; charset=utf-8", None, id="declared_and_wrong"),
        pytest.param(b"\xe9", "text/html; charset=no-such-set", None, id="unknown_name"),
        pytest.param(b"\xe9", "text/html; charset=hex", None, id="codec_that_makes_no_text"),
        pytest.param(b"\xe9", "text/html; charset=undefined", None, id="undefined"),
        pytest.param("é".encode(), "text/html; charset=latin-1", "é", id="utf-8_beats_the_header"),
    ],
)
def test_a_declared_character_set_helps_where_detection_does_not(payload, content_type, text):
    assert decode_page(payload, content_type) == text


def test_a_page_cut_inside_a_character_is_still_decoded():
    """Crawlers cut long pages at a number of bytes; one broken character at the end is no reason to fail."""
    whole = "<p>The café — naïve, “quoted” — serves all.</p>" * 20
    cut = (whole + "é").encode()[:-1]
    assert (decode_page(cut, "text/html; charset=utf-8") or "").startswith(whole)


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
        pytest.param(b"\xe9", ("failed", "undecodable"), id="undecodable"),
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
    done = extract({"slow": slow, "next": paragraphs(prose(6))}, page_cpu_seconds=0.1)
    assert done["slow"] == ("", ("failed", "cpu_limit"))
    assert done["next"][1] is None


def test_kept_documents_name_the_extractor_and_carry_no_payload(run_step, prose):
    [document] = run_step(ExtractText(TextExtraction()), [with_payload("a", paragraphs(prose(8)))])
    assert document.metadata == {"extractor": "trafilatura"}


def test_golden(run_step, behaviour, prose):
    pages = {
        "article": paragraphs(prose(6), prose(6, seed=1)),
        "list": html("<ul>" + "".join(f"<li>{prose(1, seed=n)}</li>" for n in range(6)) + "</ul>"),
        "table": html(f"<table><tr><td>{prose(2)}</td><td>{prose(2, seed=2)}</td></tr></table>"),
        "russian": f"<html><body><article><p>{RUSSIAN}</p></article></body></html>".encode("windows-1251"),
        "empty": b"",
        "undecodable": b"\xe9",
    }
    done = run_step(ExtractText(TextExtraction()), [with_payload(*page) for page in pages.items()])
    assert behaviour(done) == GOLDEN, "behaviour changed: raise the version in tasks/text_extraction.py"
