"""Selectors: Python and SQL mean the same records, and hostile URLs are not taken for others."""

import duckdb
import pytest

from pipeline_config.errors import AuditError
from tasks.steps.selection import Selector, any_of, ascii_domain

A = "\\"  # reads badly in a table
DOMAIN, URL, PREFIX, ID = "domain", "url", "url_prefix", "id"
PAGE = "https://example.com/a?b=1#c"
LONG = "x" * 100_000
ROWS = [
    # domains
    (DOMAIN, "example.com", "http://example.com", True, "host alone"),
    (DOMAIN, "example.com", "https://example.com/page", True, "path"),
    (DOMAIN, "example.com", "https://example.com?q", True, "query without a path"),
    (DOMAIN, "example.com", "https://example.com#f", True, "fragment without a path"),
    (DOMAIN, "example.com", "https://a.b.example.com/", True, "subdomains"),
    (DOMAIN, "example.com", "https://EXAMPLE.Com/", True, "upper case URL"),
    (DOMAIN, "EXAMPLE.com", "https://example.com/", True, "upper case domain"),
    (DOMAIN, " .example.com. ", "https://example.com/", True, "dots and spaces around the domain"),
    (DOMAIN, "example.com", "HTTPS://example.com/", True, "upper case scheme"),
    (DOMAIN, "example.com", "ftp://example.com/", True, "another scheme"),
    (DOMAIN, "example.com", "https://example.com:8443/", True, "port"),
    (DOMAIN, "example.com", "https://example.com:/", True, "empty port"),
    (DOMAIN, "example.com", "https://example.com./", True, "trailing dot"),
    (DOMAIN, "example.com", "https://example.com.:80/", True, "trailing dot and port"),
    (DOMAIN, "example.com", "https://user:pass@example.com/", True, "userinfo"),
    (DOMAIN, "example.com", "https://evil.org@example.com/", True, "userinfo that looks like a host"),
    (DOMAIN, "example.com", "https://a@b@example.com/", True, "two @"),
    (DOMAIN, "example.com", f"https://example.com{A}@evil.org/", True, "backslash ends the host"),
    (DOMAIN, "example.com", "https://evil-example.com/", False, "hyphen before"),
    (DOMAIN, "example.com", "https://notexample.com/", False, "letters before"),
    (DOMAIN, "example.com", "https://example.com.evil.org/", False, "domain as a subdomain"),
    (DOMAIN, "example.com", "https://example.community/", False, "longer ending"),
    (DOMAIN, "example.com", "https://example.com-evil.org/", False, "hyphen behind"),
    (DOMAIN, "example.com", "https://examplexcom/", False, "the dot is a dot"),
    (DOMAIN, "example.com", "https://example.com../", False, "two trailing dots"),
    (DOMAIN, "example.com", "https://example.com@evil.org/", False, "domain as userinfo"),
    (DOMAIN, "example.com", "https://example.com:80@evil.org/", False, "domain and port as userinfo"),
    (DOMAIN, "example.com", "https://a@example.com:80@evil.org/", False, "and one more @"),
    (DOMAIN, "example.com", "https://user:example.com@evil.org/", False, "domain as password"),
    (DOMAIN, "example.com", f"https://evil.org{A}@example.com/", False, "backslash before the @"),
    (DOMAIN, "example.com", f"https://evil.org{A}.example.com/", False, "backslash before the domain"),
    (DOMAIN, "example.com", "https://evil.org/example.com/", False, "in the path"),
    (DOMAIN, "example.com", "https://evil.org/?u=https://example.com/", False, "in the query"),
    (DOMAIN, "example.com", "https://evil.org?x@example.com/", False, "behind an @ in the query"),
    (DOMAIN, "example.com", "https://evil.org/#@example.com/", False, "in the fragment"),
    (DOMAIN, "example.com", "example.com", False, "no scheme"),
    (DOMAIN, "example.com", "//example.com/", False, "no scheme but slashes"),
    (DOMAIN, "example.com", "1http://example.com/", False, "no such scheme"),
    (DOMAIN, "example.com", "x https://example.com/", False, "not at the beginning"),
    (DOMAIN, "example.com", "https://example.com\n", False, "line break at the end"),
    (DOMAIN, "example.com", "https://evil.org\nhttps://example.com/", False, "on the second line"),
    (DOMAIN, "example.com", "https://example.com\x00.evil.org/", False, "NUL behind"),
    (DOMAIN, "example.com", "https://evil.org/\x00https://example.com/", False, "NUL in the path"),
    (DOMAIN, "example.com", f"https://example.com/{LONG}", True, "100 kB path"),
    (DOMAIN, "example.com", f"https://{'a.' * 50_000}example.com/", True, "100 kB of subdomains"),
    (DOMAIN, "example.com", f"https://{'a@' * 50_000}evil.org/", False, "100 kB of @"),
    (DOMAIN, "example.com", f"https://{'example.com.' * 9000}evil.org/", False, "100 kB of the domain"),
    (DOMAIN, "example.com", "", False, "empty URL"),
    (DOMAIN, "example.com", None, False, "no URL"),
    (DOMAIN, "bücher.example", "https://xn--bcher-kva.example/", True, "another script, URL in Punycode"),
    (DOMAIN, "bücher.example", "https://www.bücher.example/", True, "another script in both"),
    (DOMAIN, "BÜCHER.example", "https://Bücher.example/", True, "another script, upper case"),
    (DOMAIN, "xn--bcher-kva.example", "https://bücher.example/", True, "Punycode, URL in another script"),
    (DOMAIN, "bücher.example", "https://bucher.example/", False, "without its dots"),
    (DOMAIN, "com", "https://example.com/", True, "a whole top-level domain"),
    (DOMAIN, "192.0.2.1", "http://192.0.2.1:8080/", True, "an address"),
    (DOMAIN, "a_b.example", "http://axb.example/", False, "underscore is no wildcard"),
    # URLs
    (URL, PAGE, PAGE, True, "itself"),
    (URL, PAGE, PAGE.replace("https", "http"), True, "http for https"),
    (URL, PAGE.replace("https", "http"), PAGE, True, "https for http"),
    (URL, "HTTP://Example.com/", "HTTP://Example.com/", True, "itself with an upper case scheme"),
    (URL, "HTTP://Example.com/", "https://Example.com/", True, "upper case scheme for another"),
    (URL, PAGE, PAGE + "x", False, "more behind"),
    (URL, PAGE, PAGE[:-1], False, "less"),
    (URL, PAGE, PAGE + "\n", False, "a line break more"),
    (URL, PAGE, PAGE.replace("a?", "A?"), False, "case of the path"),
    (URL, "ftp://example.com/a", "https://example.com/a", False, "ftp is not https"),
    (URL, "https://e.com/'; DROP TABLE t; --", "https://e.com/'; DROP TABLE t; --", True, "quotes"),
    (URL, "https://e.com/100%", "https://e.com/100%", True, "percent sign"),
    (URL, "https://e.com/%", "https://e.com/anything", False, "percent sign is no wildcard"),
    (URL, "https://e.com/a_c", "https://e.com/abc", False, "underscore is no wildcard"),
    (URL, "https://e.com/\x00", "https://e.com/\x00", True, "NUL"),
    (URL, "https://e.com/\x00a", "https://e.com/\x00b", False, "different behind a NUL"),
    (URL, f"https://e.com/{LONG}", f"https://e.com/{LONG}", True, "100 kB URL"),
    (URL, "https://e.com/ä", "https://e.com/a\u0308", False, "another normalization"),
    (URL, PAGE, None, False, "URL of a record without one"),
    # prefixes
    (PREFIX, "https://example.com/a", PAGE, True, "beginning"),
    (PREFIX, "http://example.com/a", PAGE, True, "beginning with http"),
    (PREFIX, PAGE, PAGE, True, "whole"),
    (PREFIX, "HTTPS://example.com/a", "HTTPS://example.com/abc", True, "beginning in upper case"),
    (PREFIX, "https://example.com/b", PAGE, False, "another beginning"),
    (PREFIX, "https://example.com/%", PAGE, False, "percent is no wildcard in a beginning"),
    (PREFIX, "https://example.com/_", PAGE, False, "underscore is no wildcard in a beginning"),
    (PREFIX, "https://example.com/.*", PAGE, False, "no regular expression"),
    (PREFIX, "https://example.com/", "https://evil.org/https://example.com/", False, "in the middle"),
    (PREFIX, "https://e.com/a\x00", "https://e.com/a\x00b", True, "beginning with NUL"),
    (PREFIX, "https://e.com/a\x00b", "https://e.com/a", False, "shorter than the beginning"),
    (PREFIX, "https://e.com/'", "https://e.com/' OR 1=1", True, "beginning with a quote"),
    (PREFIX, "https://e.com/", f"https://e.com/{LONG}", True, "100 kB behind"),
    (PREFIX, "https://e.com/", None, False, "beginning of a record without a URL"),
]
IDS = [
    pytest.param("urn:uuid:1", "urn:uuid:1", True, id="itself"),
    pytest.param("urn:uuid:1", "urn:uuid:12", False, id="longer"),
    pytest.param("%", "anything", False, id="percent"),
    pytest.param("' OR 1=1 --", "x", False, id="quote"),
    pytest.param("' OR 1=1 --", "' OR 1=1 --", True, id="quote itself"),
    pytest.param("a\x00b", "a\x00b", True, id="NUL"),
    pytest.param("a\x00b", "a\x00c", False, id="behind a NUL"),
    pytest.param("../../etc/passwd", "../../etc/passwd", True, id="a path"),
    pytest.param("Id", "id", False, id="case"),
    pytest.param(LONG, LONG, True, id="100 kB"),
]


def in_sql(condition: str, parameters: list, url: str | None, identity: str) -> bool:
    """Whether a SQL condition takes a record."""
    query = f"SELECT count(*) FROM (SELECT ?::VARCHAR AS url, ?::VARCHAR AS id) WHERE {condition}"
    (found,) = duckdb.connect().execute(query, [url, identity, *parameters]).fetchone()
    return found == 1


@pytest.mark.parametrize(
    ("kind", "value", "url", "expected"), [pytest.param(*row[:4], id=f"{row[0]}-{row[4]}") for row in ROWS]
)
def test_python_and_sql_agree_on_a_url(kind, value, url, expected):
    selector = Selector(kind, value)
    assert selector.matches(url, "the-id") is expected
    assert in_sql(*selector.condition(), url, "the-id") is expected


@pytest.mark.parametrize(("value", "identity", "expected"), IDS)
def test_python_and_sql_agree_on_an_id(value, identity, expected):
    selector = Selector("id", value)
    for url in (None, "https://example.com/"):
        assert selector.matches(url, identity) is expected
        assert in_sql(*selector.condition(), url, identity) is expected


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        pytest.param("host", "example.com", "'host' selects nothing: it must be one of url", id="kind"),
        pytest.param(URL, "", "an empty url would select everything", id="empty URL"),
        pytest.param(ID, " \t\n", "an empty id would select everything", id="blank id"),
        pytest.param(PREFIX, "", "an empty url_prefix would select everything", id="empty prefix"),
        pytest.param(DOMAIN, ".", "'.' is not a domain", id="a dot"),
        pytest.param(DOMAIN, "https://example.com", "is not a domain", id="a URL for a domain"),
        pytest.param(DOMAIN, "example.com/a", "is not a domain", id="a path behind a domain"),
        pytest.param(DOMAIN, "example.com:80", "is not a domain", id="a port behind a domain"),
        pytest.param(DOMAIN, "user@example.com", "is not a domain", id="an address for a domain"),
        pytest.param(DOMAIN, "a..b", "is not a domain", id="an empty label"),
        pytest.param(DOMAIN, ".*", "is not a domain", id="a regular expression"),
        pytest.param(DOMAIN, "(?i:a)|b", "is not a domain", id="regular expression with groups"),
        pytest.param(DOMAIN, "example.com\n", None, id="white space around is taken off"),
        pytest.param(DOMAIN, "a\nb", "is not a domain", id="a line break in a domain"),
        pytest.param(DOMAIN, LONG, "is not a domain", id="100 kB domain"),
        pytest.param(DOMAIN, "ü" * 100_000, "is not a domain", id="100 kB domain in another script"),
        pytest.param(PREFIX, "example.com/", "is not the beginning of a URL", id="prefix without a scheme"),
        pytest.param(PREFIX, "https://", "is not the beginning of a URL", id="prefix without a host"),
        pytest.param(PREFIX, "https:///", "is not the beginning of a URL", id="prefix with an empty host"),
        pytest.param(ID, "\udcff", "is not Unicode", id="lone surrogate, as bytes of a command line"),
        pytest.param(DOMAIN, "a\ud800.com", "is not Unicode", id="lone surrogate in a domain"),
    ],
)
def test_what_selects_nothing_or_everything_is_refused(kind, value, message):
    if message is None:
        assert Selector(kind, value).matches("https://example.com/", "")
        return
    with pytest.raises(AuditError, match=message) as caught:
        Selector(kind, value)
    assert len(str(caught.value)) < 500
    str(caught.value).encode("utf-8")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        pytest.param("https://example.com/a", URL, "https://example.com/a", id="URL"),
        pytest.param("https://example.com/*", PREFIX, "https://example.com/", id="prefix"),
        pytest.param("example.com", DOMAIN, "example.com", id="domain"),
        pytest.param("sub.Example.com", DOMAIN, "sub.Example.com", id="subdomain"),
        pytest.param("example.com.", DOMAIN, "example.com.", id="domain with a dot at the end"),
        pytest.param("bücher.example", DOMAIN, "bücher.example", id="domain in another script"),
        pytest.param("xn--bcher-kva.example", DOMAIN, "xn--bcher-kva.example", id="domain in Punycode"),
        pytest.param("urn:uuid:3b", ID, "urn:uuid:3b", id="URN"),
        pytest.param("web/a.jsonl/17", ID, "web/a.jsonl/17", id="made-up id"),
        pytest.param("localhost", ID, "localhost", id="one word"),
        pytest.param("1.5", ID, "1.5", id="number"),
        pytest.param("'; DROP TABLE t; --", ID, "'; DROP TABLE t; --", id="SQL"),
    ],
)
def test_a_text_means_what_its_form_says(text, kind, value):
    assert Selector.of(text) == Selector(kind, value)


@pytest.mark.parametrize("text", ["*", "", "example.com/*", " "])
def test_a_text_without_a_meaning_is_refused(text):
    with pytest.raises(AuditError):
        Selector.of(text)


def test_any_of_takes_what_one_of_the_selectors_takes_and_none_takes_nothing():
    selectors = [Selector(DOMAIN, "a.example"), Selector(ID, "x"), Selector(PREFIX, "https://b.example/p")]
    for url, identity, expected in [
        ("https://www.a.example/", "y", True),
        ("https://c.example/", "x", True),
        ("http://b.example/page", "y", True),
        ("https://b.example/q", "y", False),
        (None, "x", True),
        (None, "y", False),
    ]:
        assert in_sql(*any_of(selectors), url, identity) is expected
    assert in_sql(*any_of([]), "https://www.a.example/", "x") is False


@pytest.mark.parametrize(
    ("domain", "written"),
    [
        pytest.param("Example.COM.", "example.com", id="case and dot"),
        pytest.param("BÜCHER.example", "xn--bcher-kva.example", id="another script"),
        pytest.param("例え。テスト", "xn--r8jz45g.xn--zckzah", id="ideographic full stop"),
        pytest.param("ü" * 70, "ü" * 70, id="a label that is too long stays"),
    ],
)
def test_domains_are_written_as_crawlers_write_them(domain, written):
    assert ascii_domain(domain) == written
