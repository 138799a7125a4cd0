"""Pointers into WARC files, damaged files, and the URL rules."""

import gzip
import random

import pytest
from datatrove.data import Document

from pipeline_config.curation import UrlFiltering
from pipeline_config.errors import SettingsError, SourceError, UnreachableError
from tasks.steps.sample_crawl import warc_record
from tasks.steps.shards import FATE, NOTES
from tasks.steps.text_extraction import read_record
from tasks.steps.url_filtering import FilterUrls, ReadPointers, read_pointers

PAGES = {f"https://a.example/{n}": b"<p>page %d</p>" % n * (n + 1) for n in range(5)}
MEMBERS = [warc_record(url, html) for url, html in PAGES.items()]
WHOLE = b"".join(MEMBERS)
PLAIN = b"".join(gzip.decompress(member) for member in MEMBERS)
HTML = b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n" * 20
GOLDEN = "2c7497f4f067bf2f6bd1473ec98ae3aaff9e4455af72634708fb21d8b805ff8e"


def other_record(kind: str) -> bytes:
    return gzip.compress(
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{kind}>\r\n"
        "Content-Type: text/plain\r\nContent-Length: 4\r\n\r\nabcd\r\n\r\n".encode()
    )


@pytest.mark.parametrize("data", [WHOLE, PLAIN], ids=["a_member_per_record", "uncompressed"])
def test_the_bytes_that_a_pointer_names_are_its_page(tmp_path, data):
    path = tmp_path / "crawl.warc.gz"
    path.write_bytes(data)
    found = {}
    for pointer in read_pointers(str(path)):
        start = pointer["warc_offset"]
        found[pointer["url"]] = read_record(data[start : start + pointer["warc_length"]])
    assert found == {url: (html, "text/html; charset=utf-8") for url, html in PAGES.items()}


def test_a_pointer_is_exactly_its_member(tmp_path):
    data = other_record("warcinfo") + MEMBERS[0] + other_record("request") + MEMBERS[1]
    (tmp_path / "a.warc.gz").write_bytes(data)
    spans = [(p["warc_offset"], p["warc_length"]) for p in read_pointers(str(tmp_path / "a.warc.gz"))]
    assert [data[start : start + length] for start, length in spans] == MEMBERS[:2]


def test_a_pointer_carries_the_headers_of_its_record(warc_file):
    [pointer] = read_pointers(str(warc_file({"https://a.example/": b"hello"})))
    assert pointer == {
        "id": "urn:uuid:44cc82eb-7cb9-5fdc-b087-010025d94c3f",
        "url": "https://a.example/",
        "date": "2000-01-01T00:00:00Z",
        "payload_digest": "sha1:VL2MMHO4YXUKFWV63YHTWSBM3GXKSQ2N",
        "payload_type": "text/html",
        "record_type": "response",
        "warc_offset": 0,
        "warc_length": len(warc_record("https://a.example/", b"hello")),
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "holds no record", id="empty"),
        pytest.param(HTML, "not a WARC file", id="html"),
        pytest.param(gzip.compress(HTML), "not a WARC file", id="gzip_of_html"),
        pytest.param(random.Random(0).randbytes(5000), "not a WARC file", id="random_bytes"),
        pytest.param(WHOLE[: len(MEMBERS[0]) + 80], "cut off|damaged", id="cut_inside_a_member"),
        pytest.param(WHOLE[:-20], "cut off", id="cut_in_the_last_member"),
        pytest.param(WHOLE[:-1], "cut off", id="cut_by_one_byte"),
        pytest.param(WHOLE[: len(MEMBERS[0]) + 2], "cut off|damaged", id="cut_after_the_gzip_magic"),
        pytest.param(WHOLE + HTML, "damaged", id="garbage_at_the_end"),
        pytest.param(WHOLE + b"\x1f\x8b\x08", "damaged", id="gzip_magic_at_the_end"),
        pytest.param(MEMBERS[0] + gzip.compress(b"") + MEMBERS[1], "cut off or damaged", id="empty_member"),
        pytest.param(WHOLE.replace(MEMBERS[1][-20:], b"\0" * 20), "damaged after", id="hole_in_a_member"),
        pytest.param(WHOLE + b"\0" * 100, "damaged after record 5", id="zeros_at_the_end"),
        pytest.param(gzip.compress(PLAIN), "compressed as a whole", id="one_member_for_all"),
        pytest.param(PLAIN[:-30], "cut off", id="uncompressed_and_cut"),
        pytest.param(other_record("warcinfo"), "1 WARC records, but no response", id="no_response"),
    ],
)
def test_a_file_that_is_not_a_whole_crawl_is_refused_by_name(tmp_path, data, message):
    path = tmp_path / "broken.warc.gz"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=message) as caught:
        list(read_pointers(str(path)))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "rest", [gzip.compress(b"") + MEMBERS[0], MEMBERS[0][:60]], ids=["behind_an_empty_member", "cut_off"]
)
def test_no_record_is_lost_where_the_one_before_it_ends_with_a_block(tmp_path, rest):
    """The last record is read once more, a MiB at a time; what follows it must not escape notice."""
    noise, size = random.Random(1).randbytes(1 << 20), 1 << 20
    while len(record := warc_record("https://a.example/big", noise[:size])) != 1 << 20:
        size -= len(record) - (1 << 20)
    (tmp_path / "a.warc.gz").write_bytes(record + rest)
    with pytest.raises(SourceError, match="cut off"):
        list(read_pointers(str(tmp_path / "a.warc.gz")))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"there is no file .*nothing\.warc\.gz"):
        list(read_pointers(str(tmp_path / "nothing.warc.gz")))


def test_an_error_of_the_disk_is_not_called_damage(tmp_path):
    with pytest.raises(IsADirectoryError):
        list(read_pointers(str(tmp_path)))


def test_every_odd_warc_is_read_or_refused(shared_data):
    """109 odd files, real and made: each gives pointers to readable spans, or a SourceError that names it."""
    outcomes = {}
    for path in sorted((shared_data / "warc-odd").glob("*/*")):
        try:
            pointers = list(read_pointers(str(path)))
            outcomes[path.name] = all(pointer["warc_length"] > 0 for pointer in pointers)
        except SourceError as error:
            outcomes[path.name] = str(path) in str(error)
        except Exception as error:
            outcomes[path.name] = repr(error)
    assert len(outcomes) == 109
    assert {name: outcome for name, outcome in outcomes.items() if outcome is not True} == {}


def test_records_without_an_id_are_named_by_file_and_offset(tmp_path, run_step):
    nameless = gzip.decompress(MEMBERS[0]).split(b"\r\n")
    member = gzip.compress(b"\r\n".join(line for line in nameless if not line.startswith(b"WARC-Record-ID")))
    (tmp_path / "a.warc.gz").write_bytes(member + MEMBERS[1])
    step = ReadPointers([str(tmp_path / "a.warc.gz")], ["seg/a.warc.gz"], "web", "DUMP")
    one, other = run_step(step)
    assert one.id == "seg/a.warc.gz#0"
    assert other.id.startswith("urn:uuid:")
    assert one.metadata | {"source": "web", "dump": "DUMP", "file_path": "seg/a.warc.gz"} == one.metadata


def decide(run_step, **metadata) -> tuple[str, str, str] | None:
    settings = UrlFiltering(
        use_integrated_lists=False,
        extra_domains=(
            "Bad-Site.com",
            "sub.half-site.com",
            "spam.co.uk",
            "8.8.4.4",
            "2001:db8::1",
            "bäd.example",
        ),
        http_statuses=(200, 203),
    )
    document = Document(text="", id="x", metadata={"record_type": "response"} | metadata)
    [decided] = run_step(FilterUrls(settings), [document])
    fate = decided.metadata.get(FATE)
    return fate and (fate.kind, fate.reason, fate.value)


@pytest.mark.parametrize(
    ("metadata", "fate"),
    [
        pytest.param({"url": "https://good.example/a"}, None, id="good"),
        pytest.param({"url": "https://good.example/a", "payload_type": "text/html"}, None, id="html"),
        pytest.param({"url": "https://half-site.com/"}, None, id="another_subdomain_is_blocked"),
        pytest.param({"url": "https://notbad-site.com/"}, None, id="domain_that_ends_alike"),
        pytest.param({"url": "https://a.b.bad-site.com/x"}, ("domain", "bad-site.com"), id="domain"),
        pytest.param({"url": "https://WWW.BAD-SITE.com./"}, ("domain", "bad-site.com"), id="capitals"),
        pytest.param({"url": "https://www.spam.co.uk/"}, ("domain", "spam.co.uk"), id="suffix_of_two_parts"),
        pytest.param({"url": "https://spam.co.uk.good.example/"}, None, id="domain_in_front"),
        pytest.param(
            {"url": "https://me@sub.half-site.com:81"}, ("subdomain", "sub.half-site.com"), id="sub"
        ),
        pytest.param({"url": "http://8.8.4.4/x"}, ("domain", "8.8.4.4"), id="address"),
        pytest.param({"url": "http://0x8.8.1028"}, ("domain", "8.8.4.4"), id="address_in_disguise"),
        pytest.param({"url": "http://1.8.8.4.4/"}, None, id="no_subdomain_of_an_address"),
        pytest.param({"url": "http://[2001:DB8:0::1]/"}, ("domain", "[2001:db8::1]"), id="ipv6"),
        pytest.param({"url": "http://BÄD.example/"}, ("domain", "xn--bd-via.example"), id="other_script"),
        pytest.param({"url": "http://\ud800.bad-site.com/"}, ("domain", "bad-site.com"), id="lone_surrogate"),
        pytest.param(
            {"url": "http://" + "a." * 9999 + "bad-site.com"}, ("domain", "bad-site.com"), id="long"
        ),
        pytest.param({"url": "http://[bad-site.com"}, None, id="open_bracket"),
        pytest.param({"url": "https://good.example/", "http_status": 203}, None, id="status"),
        pytest.param({"url": "https://good.example/", "http_status": 404}, ("http_status", "404"), id="404"),
        pytest.param(
            {"url": "https://good.example/", "payload_type": "application/pdf"},
            ("payload_type", "application/pdf"),
            id="pdf",
        ),
        pytest.param({}, ("no_url", ""), id="no_url"),
        pytest.param({"url": ""}, ("no_url", ""), id="empty_url"),
        pytest.param(
            {"url": "https://good.example/", "record_type": "revisit"},
            ("revisit", "the page is unchanged since an earlier record"),
            id="revisit",
        ),
    ],
)
def test_a_record_is_kept_or_removed_with_the_value_that_decided(run_step, metadata, fate):
    assert decide(run_step, **metadata) == (fate and ("removed", *fate))


def test_every_record_is_noted_with_the_one_spelling_of_its_url(run_step):
    urls = ["HTTP://A.example:80/?utm_source=x#y", "", "no url"]
    documents = [Document(text="", id="x", metadata={"url": url}) for url in urls]
    decided = run_step(FilterUrls(UrlFiltering(use_integrated_lists=False)), documents)
    noted = [document.metadata[NOTES]["canonical_url"] for document in decided]
    assert noted == ["http://a.example/", None, "no url"]


def test_a_wrong_extra_domain_is_named(run_step):
    settings = UrlFiltering(use_integrated_lists=False, extra_domains=("good.example", "http://x.example/"))
    with pytest.raises(SettingsError, match=r"extra_domains: 'http://x.example/' is no domain"):
        FilterUrls(settings).prepare()


def test_golden(warc_file, run_step, behaviour):
    path = warc_file(PAGES | {"https://bad-site.com/": b"<p>bad</p>"})
    settings = UrlFiltering(use_integrated_lists=False, extra_domains=("bad-site.com",))
    read = run_step(ReadPointers([str(path)], ["a.warc.gz"], "web", "DUMP"))
    assert behaviour(run_step(FilterUrls(settings), read)) == GOLDEN, (
        "behaviour changed: raise the version in tasks/url_filtering.py"
    )


@pytest.mark.parametrize(
    ("place", "error"),
    [
        pytest.param("http://127.0.0.1:9", UnreachableError, id="no server"),
        pytest.param("{server}/503", UnreachableError, id="busy"),
        pytest.param("{server}/cut", UnreachableError, id="broken off"),
        pytest.param("{server}/403", SourceError, id="forbidden"),
    ],
)
def test_storage_that_does_not_answer_is_told_from_a_bad_file(bad_server, place, error):
    uri = f"{place.format(server=bad_server)}/a.warc.gz"
    with pytest.raises((SourceError, UnreachableError), match=uri) as caught:
        list(read_pointers(uri))
    assert type(caught.value) is error
