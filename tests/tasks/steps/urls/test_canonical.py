"""One spelling for the URLs of one page."""

import gzip
import json
import re
import time
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.steps.urls.canonical import canonical_host, canonical_url

ODD = "\ud800\x00\x7f\t\n \\@:[]%/?#&=;.。٣İßé漢\u202e"
URLISH = st.text("abcZ09-._~+%25%2E%e4 " + ODD, max_size=60)


@st.composite
def urls(draw: st.DrawFn) -> str:
    """URLs of all sorts, most of them with a scheme and a host."""
    scheme = draw(st.sampled_from(["http", "HTTPS", "ftp", "x+y.z", "", "1a"]))
    return scheme + draw(st.sampled_from(["://", ":", "//", ":/\\"])) + draw(URLISH)


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        pytest.param("HTTP://WWW.Example.COM", "http://www.example.com/", id="case and empty path"),
        pytest.param("https://a.example:443/x", "https://a.example/x", id="default port"),
        pytest.param("http://a.example:443/x", "http://a.example:443/x", id="another port"),
        pytest.param("http://a.example:080/x", "http://a.example/x", id="port with a zero"),
        pytest.param("http://a.example:/x", "http://a.example/x", id="empty port"),
        pytest.param("http://a.example./x#part", "http://a.example/x", id="dot at the end, fragment"),
        pytest.param("http://a.example .%20./x", "http://a.example/x", id="dots and blanks at the end"),
        pytest.param("http://me:pw@a.example/x", "http://me:pw@a.example/x", id="userinfo"),
        pytest.param("http://MÜNCHEN.example/", "http://xn--mnchen-3ya.example/", id="IDN"),
        pytest.param("http://m%C3%BCnchen.example/", "http://xn--mnchen-3ya.example/", id="escaped IDN"),
        pytest.param("http://a。example/", "http://a.example/", id="ideographic full stop"),
        pytest.param("http://0x7f.1/", "http://127.0.0.1/", id="short hexadecimal address"),
        pytest.param("http://2130706433/", "http://127.0.0.1/", id="address as one number"),
        pytest.param("http://127.0.0x1/x", "http://127.0.0.1/x", id="address that ends in letters"),
        pytest.param("http://1.2.3.4.5/", "http://1.2.3.4.5/", id="no address"),
        pytest.param("http://[0:0::1]:80/", "http://[::1]/", id="IPv6"),
        pytest.param("http://[::FFFF:1.2.3.4]/", "http://[::ffff:1.2.3.4]/", id="IPv4 in IPv6"),
        pytest.param("http://[zz]/", "http://%5Bzz%5D/", id="brackets without an address"),
        pytest.param("http://a.example/%7euser/%e4", "http://a.example/~user/%E4", id="escapes"),
        pytest.param("http://a.example/ä b%", "http://a.example/%C3%A4%20b%25", id="what must be escaped"),
        pytest.param("http://a.example/a/./b/../c/..", "http://a.example/a/", id="dot segments"),
        pytest.param("http://a.example/%2e%2E/x", "http://a.example/x", id="escaped dot segments"),
        pytest.param("http://a.example/x;jsessionid=0A?a=1", "http://a.example/x?a=1", id="session in path"),
        pytest.param("http://a.example/?b=2&a=1&&b=1", "http://a.example/?a=1&b=2&b=1", id="order"),
        pytest.param("http://a.example/?UTM_Source=x&fbclid=1", "http://a.example/", id="tracking"),
        pytest.param("http://a.example/?PHPSESSID=1&sid=3&gid=4", "http://a.example/?gid=4&sid=3", id="ids"),
        pytest.param("http://a.example/?sid=0123456789abcdef0", "http://a.example/", id="session as sid"),
        pytest.param("http://a.example/?ref=news.example", "http://a.example/", id="ref of a site"),
        pytest.param("http://a.example/f?ref=v1.2", "http://a.example/f?ref=v1.2", id="ref of a version"),
        pytest.param("http:\\\\a", "http:\\\\a", id="no authority"),
        pytest.param("  no url\n", "no url", id="no URL"),
        pytest.param("http:///path", "http:///path", id="no host"),
        pytest.param("", "", id="empty"),
    ],
)
def test_a_url_has_one_spelling(url, canonical):
    assert canonical_url(url) == canonical


@given(urls())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_the_spelling_is_settled_and_whole_whatever_the_url_is(url):
    found = canonical_url(url)
    assert canonical_url(found) == found
    assert found.isascii() or found == url.strip("".join(map(chr, range(33))))


@given(st.text("1230xabf.:[]%٣", max_size=20))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_host_that_looks_like_an_address_never_raises(host):
    assert canonical_host(canonical_host(host)) == canonical_host(host)


@pytest.mark.parametrize("part", ["a.", "%41", "/..", "@", ";sid=", "é", "&a", "a-", "[", "0x1."])
@pytest.mark.parametrize("start", ["http://", "http://a.example/", "http://a.example/?"])
def test_a_very_long_url_takes_time_in_proportion(start, part):
    """100 kB within seconds of CPU time: anything quadratic would take minutes."""
    began = time.thread_time()
    canonical_url(start + part * (100_000 // len(part)))
    assert time.thread_time() - began < 10


def test_tracking_does_not_tell_urls_apart_and_nothing_else_is_thrown_together(shared_data):
    with gzip.open(shared_data / "crawl" / "dedup_gold.jsonl.gz", "rt") as file:
        pairs = [pair for line in file if (pair := json.loads(line))["kind"] == "tracking-exact"]
    assert len(pairs) == 36
    assert [p for p in pairs if canonical_url(p["a"][1]) != canonical_url(p["b"][1])] == []
    with gzip.open(shared_data / "crawl" / "manifest.jsonl.gz", "rt") as file:
        crawled = {json.loads(line)["url"] for line in file}
    groups = defaultdict(set)
    for url in crawled:
        groups[canonical_url(url)].add(url)
    planted = {frozenset((p["a"][1], p["b"][1])) for p in pairs}
    others = [group for group in groups.values() if len(group) > 1 and frozenset(group) not in planted]
    assert len(others) == 2
    for group in others:  # one page with two fragments, one with and without a session
        assert len({re.sub(r"#.*|&sid=[0-9a-f]{32}", "", url) for url in group}) == 1
