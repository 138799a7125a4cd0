"""Character sets: the order in which they are looked for, and declarations that the bytes do not bear out."""

import codecs
import gzip
import json

import pytest

from tasks.steps.pages.charset import decode_page, python_name
from tasks.steps.warc.records import read_record

RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация юга. " * 3
JAPANESE = "いろはにほへと ちりぬるを。日本語の文章を判定するための例文です。東京は日本の首都です。" * 3
CHINESE = "中文文本的字符集检测需要足够多的汉字。北京是中华人民共和国的首都，是全国的文化中心。" * 3
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy. Nechť již hříšné saxofony rozezvučí síň tóny waltzu. " * 3
POLISH = "Zażółć gęślą jaźń. Pchnąć w tę łódź jeża lub ośm skrzyń fig. Szczebrzeszyn z tego słynie. " * 3


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
    assert decode_page(text.encode(charset)).text == text


def page(text: str, charset: str = "", declared: str = "") -> bytes:
    """A page with a declaration, in a character set."""
    meta = f'<meta charset="{declared}">' if declared else ""
    return f"<html><head>{meta}</head><body><p>{text}</p></body></html>".encode(charset or "utf-8")


@pytest.mark.parametrize(
    ("payload", "content_type", "charset", "found_by"),
    [
        pytest.param(
            page(CZECH, "iso-8859-2"), "text/html; charset=iso-8859-2", "iso8859-2", "header", id="header"
        ),
        pytest.param(
            page(RUSSIAN, "cp1251"), 'a; Charset = "windows-1251";b=c', "cp1251", "header", id="quoted"
        ),
        pytest.param(page(RUSSIAN, "koi8-r", "koi8-r"), "text/html", "koi8-r", "meta", id="meta"),
        pytest.param(page("naïve café", "cp1252", "iso-8859-1"), "", "cp1252", "meta", id="latin-1_is_1252"),
        pytest.param(page(CHINESE, "gbk", "gb2312"), "", "gbk", "meta", id="gb2312_is_gbk"),
        pytest.param(page("𠀀" + CHINESE, "gb18030", "gb2312"), "", "gbk", "meta", id="gb2312_is_gb18030"),
        pytest.param(
            page(RUSSIAN, "", "windows-1251"), "a; charset=latin1", "utf-8", "bytes", id="utf-8_by_form"
        ),
        pytest.param(page(RUSSIAN, "cp1251", "koi8-r"), "", "cp1251", "detection", id="meta_that_is_wrong"),
        pytest.param(
            page(RUSSIAN, "koi8-r"), "a; charset=cp1251", "koi8-r", "detection", id="header_that_is_wrong"
        ),
        pytest.param(
            page(RUSSIAN, "cp1251", "cp1251"), "a; charset=utf-8", "cp1251", "meta", id="header_says_utf-8"
        ),
        pytest.param(
            page(JAPANESE, "euc-jp", "euc-jp"), "a; charset=latin-1", "euc_jp", "meta", id="meta_beats_header"
        ),
        pytest.param(page(JAPANESE, "iso-2022-jp", "iso-2022-jp"), "", "iso2022_jp", "meta", id="escapes"),
        pytest.param(page(RUSSIAN, "utf-7"), "a; charset=utf-7", "utf-7", "header", id="utf-7"),
        pytest.param(page("1 + 1", "ascii"), "a; charset=utf-7", "utf-8", "bytes", id="no_utf-7_at_all"),
        pytest.param(page(RUSSIAN, "utf-16-le"), "", "utf-16-le", "bytes", id="utf-16_without_mark"),
        pytest.param(page("plain", "utf-16-be", "utf-16"), "", "utf-16-be", "bytes", id="utf-16_big_endian"),
        pytest.param(page(RUSSIAN, "", "utf-16"), "", "utf-8", "meta", id="utf-16_in_ascii"),
        pytest.param(
            b"<?xml version='1.0' encoding='koi8-r'?>" + page(RUSSIAN, "koi8-r"),
            "",
            "koi8-r",
            "meta",
            id="xml",
        ),
        pytest.param(
            b"<!-- <meta charset=koi8-r> -->" + page(RUSSIAN, "cp1251", "cp1251"),
            "",
            "cp1251",
            "meta",
            id="comment",
        ),
        pytest.param(
            page(RUSSIAN, "utf-8-sig", "koi8-r"), "a; charset=koi8-r", "utf-8", "bom", id="mark_beats_all"
        ),
        pytest.param(
            page(RUSSIAN, "cp855"), "a; charset=IBM855", "cp855", "header", id="browsers_do_not_know_it"
        ),
    ],
)
def test_a_declaration_is_believed_where_the_bytes_bear_it_out(payload, content_type, charset, found_by):
    assert decode_page(payload, content_type)[1:] == (charset, found_by)


@pytest.mark.parametrize(
    "label", ["hex", "undefined", "no-such-set", "unicode_escape", "idna", "rot13", "mbcs"]
)
def test_names_of_no_character_set_are_none(label):
    assert python_name(label) is None
    assert decode_page(page("naïve café", "cp1252"), f"a; charset={label}").text.count("naïve café") == 1


@pytest.mark.parametrize("cut", [1, 2])
def test_a_page_cut_inside_a_character_is_still_decoded(cut):
    """Crawlers cut long pages at a number of bytes; one broken character at the end is no reason to fail."""
    whole = "<p>The café — naïve, “quoted” — serves all.</p>" * 20
    payload = (whole + "語").encode()[:-cut]
    assert decode_page(payload, "text/html; charset=utf-8").text == whole


def test_a_few_stray_bytes_do_not_make_another_character_set():
    payload = page(RUSSIAN).replace(b"<p>", b"<p>\xe9 ")
    assert decode_page(payload) == (payload.decode("utf-8", "replace"), "utf-8", "bytes")


def test_texts_are_valid_unicode_without_zeros():
    """Zeros vanish; surrogates, which UTF-16 and UTF-7 can spell, are replaced."""
    assert decode_page(b"<p>a\x00b</p>").text == "<p>ab</p>"
    for payload, content_type in [
        (codecs.BOM_UTF16_LE + b"<\x00p\x00>\x00\x00\xd8x\x00", ""),
        (b"<p>+2AA- is half a character</p>", "a; charset=utf-7"),
        (b"<p>\xed\xa0\x80 is another</p>", "a; charset=utf-8"),
    ]:
        decode_page(payload, content_type).text.encode()


@pytest.mark.parametrize("payload", [bytes(range(32)) * 9, b"\x89PNG\r\n\x1a\n\x00\x00" * 50])
def test_bytes_that_are_no_text_are_none(payload):
    assert decode_page(payload) is None


def test_transcoded_pages_read_as_they_were_written(shared_data):
    """68 pages in old character sets, declared rightly, only in the page, or wrongly by the server."""
    crawl = shared_data / "crawl"
    with gzip.open(crawl / "manifest.jsonl.gz", "rt") as lines:
        records = [record for record in map(json.loads, lines) if "transcoded" in (record["plant"] or "")]
    for record in records:
        with (crawl / record["warc"]).open("rb") as file:
            file.seek(record["offset"])
            found = read_record(file.read(record["length"]))
        charset = record["plant"].split(":")[1]
        assert decode_page(found.payload, found.content_type).text == found.payload.decode(charset), record[
            "url"
        ]
    assert len(records) == 68
