"""Takedown: which lists are read, which records an entry means, and what is left of a record."""

import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
from datatrove.data import Document

from pipeline_config.errors import SettingsError
from tasks.steps.selection import Selector
from tasks.steps.shards import FATE, failed, removed_row
from tasks.steps.takedown import TakeDown, TakedownList, parse_takedown_list

GOOD = """\
reason: their owner asked
date: 2026-11-30
entries:
  - domain: example.com
  - url: https://example.org/page.html
  - url_prefix: https://example.org/members/
  - id: urn:uuid:5f2f0d9c-9e2f-4c1b-8a35-3a3d8f1e2b11
"""
HEAD = "reason: r\ndate: 2026-11-30\nentries:\n"
LAUGHS = (
    "reason: r\ndate: 2026-11-30\n"
    "entries: [&a0 [lol], "
    + ", ".join(f"&a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))
    + "]\n"
)


def listed(*entries: tuple[str, str]) -> TakedownList:
    """A list of entries."""
    return TakedownList("d" * 64, "r", "2026-11-30", tuple(Selector(*entry) for entry in entries))


def record(url: str | None, identity: str = "i", text: str = "secret text", **metadata: Any) -> Document:
    """A record before the takedown."""
    return Document(text=text, id=identity, metadata=metadata | ({"url": url} if url is not None else {}))


def test_a_list_is_read_with_all_its_kinds():
    found = parse_takedown_list(GOOD.encode(), "list.yaml")
    assert [(s.kind, s.value) for s in found.selectors] == [
        ("domain", "example.com"),
        ("url", "https://example.org/page.html"),
        ("url_prefix", "https://example.org/members/"),
        ("id", "urn:uuid:5f2f0d9c-9e2f-4c1b-8a35-3a3d8f1e2b11"),
    ]
    assert (found.reason, found.date) == ("their owner asked", "2026-11-30")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda text: text.replace("2026-11-30", "'2026-11-30'"), GOOD, id="quoted_date"),
        pytest.param(lambda text: "\ufeff" + text, GOOD, id="byte_order_mark"),
        pytest.param(lambda text: text.replace("\n", "\r\n"), GOOD, id="windows_lines"),
        pytest.param(lambda text: "# comment\n" + text, GOOD, id="comment"),
        pytest.param(lambda text: text.replace("  - ", "- "), GOOD, id="no_indent"),
    ],
)
def test_spellings_of_a_list_mean_the_same(change: Callable[[str], str], expected: str):
    one, other = (parse_takedown_list(text.encode(), "x") for text in (change(GOOD), expected))
    assert (one.reason, one.date, one.selectors) == (other.reason, other.date, other.selectors)
    assert one.digest != other.digest  # it is of the bytes


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param("reason: [", "not valid YAML", id="no_yaml"),
        pytest.param(b"\x89PNG\r\n\x00", "not valid YAML", id="binary"),
        pytest.param("reason: é".encode("latin-1"), "not valid YAML", id="not_utf-8"),
        pytest.param(GOOD.encode("utf-16"), "not valid YAML", id="utf-16"),
        pytest.param("", "must hold exactly", id="empty"),
        pytest.param("just text", "must hold exactly", id="text"),
        pytest.param("- domain: a.com", "must hold exactly", id="list"),
        pytest.param("null", "must hold exactly", id="null"),
        pytest.param(GOOD + "by: me\n", "must hold exactly", id="another_key"),
        pytest.param(GOOD.replace("date: 2026-11-30\n", ""), "must hold exactly", id="no_date"),
        pytest.param(GOOD.replace("reason: their owner asked\n", ""), "must hold exactly", id="no_reason"),
        pytest.param(GOOD + "---\n" + GOOD, "not valid YAML", id="two_documents"),
        pytest.param(GOOD + "entries:\n  - id: x\n", "not valid YAML.*entries.*twice", id="entries_twice"),
        pytest.param("{[a]: 1}", "not valid YAML", id="unhashable_key"),
        pytest.param("? {a: 1}\n: 1", "not valid YAML", id="mapping_as_key"),
        pytest.param("[" * 3000, "not valid YAML", id="deeply_nested"),
        pytest.param(GOOD.replace("their", "!!python/object:os.system 'x'"), "not valid YAML", id="tag"),
        pytest.param(
            HEAD + "  - !!python/object/apply:os.system ['touch /tmp/x']", "not valid YAML", id="apply_tag"
        ),
        pytest.param(GOOD.replace("reason: ", "reason: &a "), "not valid YAML.*anchor", id="anchor"),
        pytest.param(LAUGHS, "not valid YAML.*anchor", id="billion_laughs"),
        pytest.param(HEAD + "  - &a [*a]\n", "not valid YAML.*anchor", id="recursive"),
        pytest.param(GOOD.replace("their owner asked", "''"), "reason: '' must be a text", id="empty_reason"),
        pytest.param(GOOD.replace("their owner asked", "7"), "reason: 7 must be", id="number_as_reason"),
        pytest.param(GOOD.replace("their owner asked", '"\\ud800"'), "surrogate", id="surrogate_reason"),
        pytest.param(GOOD.replace("2026-11-30", "soon"), "date: 'soon' must be a date", id="word_as_date"),
        pytest.param(GOOD.replace("2026-11-30", "2026-13-01"), "date|month", id="thirteenth_month"),
        pytest.param(GOOD.replace("2026-11-30", "2026-02-30"), "date|day", id="thirtieth_of_february"),
        pytest.param(GOOD.replace("2026-11-30", "30.11.2026"), "date: '30.11.2026'", id="german_date"),
        pytest.param(GOOD.replace("2026-11-30", "2026-11-30 10:00:00"), "date: ", id="time"),
        pytest.param(GOOD.replace("2026-11-30", ""), "date: None must be a date", id="empty_date"),
        pytest.param(GOOD.replace("2026-11-30", "9" * 5000), "date|digits", id="huge_number"),
        pytest.param(HEAD.replace("entries:", "entries: []"), "entries: must be a list", id="no_entries"),
        pytest.param(HEAD, "entries: must be a list", id="null_entries"),
        pytest.param(HEAD + "  domain: a.com\n", "entries: must be a list", id="mapping_of_entries"),
    ],
)
def test_a_bad_list_is_refused_with_its_name(data: str | bytes, message: str):
    with pytest.raises(SettingsError, match=message) as caught:
        parse_takedown_list(data if isinstance(data, bytes) else data.encode(), "s3://lists/bad.yaml")
    assert "takedown list s3://lists/bad.yaml" in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        pytest.param("example.com", "'example.com' must be one of url, url_prefix", id="text"),
        pytest.param("7", "7 must be one of", id="number"),
        pytest.param("[domain, a.com]", "must be one of", id="list"),
        pytest.param("{}", "must be one of", id="empty_mapping"),
        pytest.param("{domain: a.com, id: x}", "must be one of", id="two_kinds"),
        pytest.param("{domain: a.com, domain: b.com}", "twice", id="one_kind_twice"),
        pytest.param("{host: a.com}", "'host' selects nothing", id="wrong_kind"),
        pytest.param("{DOMAIN: a.com}", "'DOMAIN' selects nothing", id="wrong_case"),
        pytest.param("{7: a.com}", "7 selects nothing", id="number_as_kind"),
        pytest.param("{id: 7}", "{'id': 7} must be one of", id="number_as_value"),
        pytest.param("{id: 2026-11-30}", "must be one of", id="date_as_value"),
        pytest.param("{id: }", "must be one of", id="null_value"),
        pytest.param("{id: ''}", "an empty id", id="empty_id"),
        pytest.param("{url: '  '}", "an empty url", id="blank_url"),
        pytest.param("{url_prefix: ''}", "an empty url_prefix", id="empty_prefix"),
        pytest.param("{domain: 'https://a.com/x'}", "is not a domain", id="url_as_domain"),
        pytest.param("{domain: 'a.com/x'}", "is not a domain", id="path_in_domain"),
        pytest.param("{domain: '.'}", "is not a domain", id="dot"),
        pytest.param("{domain: '*.a.com'}", "is not a domain", id="star"),
        pytest.param("{domain: 'a b'}", "is not a domain", id="space"),
        pytest.param("{url_prefix: 'a.com/'}", "needs a scheme and a host", id="prefix_without_scheme"),
        pytest.param("{url_prefix: 'https://'}", "needs a scheme and a host", id="prefix_of_everything"),
        pytest.param('{id: "\\udc80"}', "surrogate", id="surrogate"),
    ],
)
def test_a_bad_entry_is_refused_with_its_place(entry: str, message: str):
    data = f"{HEAD}  - id: fine\n  - {entry}\n"
    with pytest.raises(SettingsError, match=message) as caught:
        parse_takedown_list(data.encode(), "bad.yaml")
    assert "takedown list bad.yaml" in str(caught.value)
    assert "line 5" in str(caught.value) or "entries.1: " in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "url", "meant"),
    [
        pytest.param(("domain", "a.com"), "https://a.com", True, id="domain"),
        pytest.param(("domain", "a.com"), "https://a.com/x", True, id="domain_with_path"),
        pytest.param(("domain", "a.com"), "http://www.a.com/x", True, id="subdomain"),
        pytest.param(("domain", "a.com"), "https://A.COM:8080?x", True, id="case_port_query"),
        pytest.param(("domain", "a.com"), "https://u:p@a.com/", True, id="user"),
        pytest.param(("domain", "a.com"), "https://u@v@a.com/", True, id="two_ats"),
        pytest.param(("domain", "a.com"), "https://a.com./x", True, id="final_dot"),
        pytest.param(("domain", "a.com"), "https://a.com..", False, id="two_final_dots"),
        pytest.param(("domain", "a.com"), "https://a.com\\x", True, id="backslash"),
        pytest.param(("domain", "A.com."), "https://a.com/x", True, id="entry_in_another_spelling"),
        pytest.param(("domain", "bücher.example"), "https://xn--bcher-kva.example/", True, id="punycode"),
        pytest.param(("domain", "bücher.example"), "https://BÜCHER.example/", True, id="own_script"),
        pytest.param(("domain", "xn--bcher-kva.example"), "https://www.bücher.example", True, id="both_ways"),
        pytest.param(("domain", "bücher.example"), "https://xbücher.example/", False, id="longer_own_script"),
        pytest.param(("domain", "site.com"), "https://\u017fite.com/", True, id="long_s"),
        pytest.param(("domain", "a.com"), "https://a.com\n", False, id="line_break"),
        pytest.param(("domain", "a.com"), "https://a.com:p@evil.org/", False, id="as_user_and_password"),
        pytest.param(("domain", "evil.org"), "https://a.com:p@evil.org/", True, id="behind_a_password"),
        pytest.param(("domain", "a.com"), "https://ba.com/", False, id="longer_name"),
        pytest.param(("domain", "a.com"), "https://a.com.evil.org/", False, id="longer_domain"),
        pytest.param(("domain", "a.com"), "https://evil.org/a.com", False, id="in_the_path"),
        pytest.param(("domain", "a.com"), "https://evil.org?@a.com/", False, id="in_the_query"),
        pytest.param(("domain", "a.com"), "https://a.com@evil.org/", False, id="as_the_user"),
        pytest.param(("domain", "a.com"), "a.com", False, id="no_url"),
        pytest.param(("domain", "a.com"), "", False, id="empty_url"),
        pytest.param(("domain", "a.com"), None, False, id="without_url"),
        pytest.param(("url", "https://a.com/x"), "http://a.com/x", True, id="scheme"),
        pytest.param(("url", "HTTP://a.com/x"), "HTTP://a.com/x", True, id="own_spelling_of_the_scheme"),
        pytest.param(
            ("url_prefix", "HTTP://a.com/"), "HTTP://a.com/x", True, id="prefix_in_its_own_spelling"
        ),
        pytest.param(("url", "https://a.com/x"), "https://a.com/x/", False, id="another_path"),
        pytest.param(("url", "https://a.com/x"), "https://a.com/X", False, id="another_case"),
        pytest.param(("url", "ftp://a.com/x"), "http://a.com/x", False, id="another_scheme"),
        pytest.param(("url_prefix", "https://a.com/x"), "http://a.com/xyz", True, id="prefix"),
        pytest.param(("url_prefix", "https://a.com/x"), "https://a.com/", False, id="shorter_than_prefix"),
        pytest.param(("id", "i"), "https://a.com/", True, id="id"),
        pytest.param(("id", "i"), None, True, id="id_without_url"),
        pytest.param(("id", "I"), None, False, id="another_id"),
        pytest.param(("id", "https://a.com/"), "https://a.com/", False, id="url_as_id"),
    ],
)
def test_an_entry_means_what_its_selector_means(entry: tuple[str, str], url: str | None, meant: bool):
    assert (listed(entry).match(url, "i") is not None) is meant
    assert Selector(*entry).matches(url, "i") is meant


NAMES = ["a", "b", "www", "A", "com", "org", "example", "a-b", "_x", "1", "ü", "Ü", "xn--tda", "ſ", ""]
ENDS = ["", "/", "/x", "/x/y", "?q", "#f", ":80", ":80/x", ".", "./x", "\\x", "/x@b.com", "?u=http://a.com/"]
USERS = ["", "", "", "u@", "a.com@", "u:p@", "a@b@", "a.com:p@"]


def random_host(choose: random.Random) -> str:
    return ".".join(choose.choices(NAMES, k=choose.randint(1, 4)))


def random_url(choose: random.Random) -> str:
    """A URL, often an odd one."""
    scheme = choose.choice(["http", "https", "http", "https", "HTTP", "ftp", "x+y", ""])
    return f"{scheme}://{choose.choice(USERS)}{random_host(choose)}{choose.choice(ENDS)}"


def random_entry(choose: random.Random) -> Selector:
    """An entry that means some of the random URLs."""
    kind = choose.choice(["domain", "domain", "url", "url_prefix", "id"])
    if kind == "domain":
        names = choose.choices([name for name in NAMES if name], k=choose.randint(1, 3))
        return Selector(kind, ".".join(names))
    if kind == "id":
        return Selector(kind, str(choose.randint(0, 99)))
    url = f"{choose.choice(['http', 'https', 'ftp'])}://{choose.choice(NAMES[:5])}.com{choose.choice(ENDS)}"
    return Selector(kind, url)


@pytest.mark.parametrize("seed", range(5))
def test_a_list_means_what_any_of_its_selectors_means(seed: int):
    choose = random.Random(seed)
    meant = 0
    for _ in range(100):
        found = TakedownList("d", "r", "2026-11-30", tuple(random_entry(choose) for _ in range(3)))
        for _ in range(40):
            url, identity = random_url(choose), str(choose.randint(0, 999))
            expected = [s for s in found.selectors if s.matches(url, identity)]
            entry = found.match(url, identity)
            assert (entry is not None) is bool(expected), (url, identity, found.selectors)
            assert entry is None or entry in expected
            meant += bool(expected)
    assert 100 < meant < 3900


def test_a_record_goes_with_the_list_as_the_value_and_without_its_text(run_step: Callable[..., Any]):
    found = parse_takedown_list(GOOD.encode(), "list.yaml")
    records = [record("https://www.example.com/x"), record("https://example.org/", "kept")]
    gone, kept = run_step(TakeDown([found]), records)
    fate = gone.metadata[FATE]
    assert (fate.kind, fate.reason) == ("removed", "takedown")
    assert fate.value == f"domain in list {found.digest[:12]} of 2026-11-30: their owner asked"
    row = removed_row(gone, fate)
    assert (row["id"], row["url"], row["excerpt"]) == ("i", "https://www.example.com/x", "")
    assert (kept.text, FATE in kept.metadata) == ("secret text", False)


def test_a_record_that_failed_before_is_taken_down_all_the_same(run_step: Callable[..., Any]):
    odd = record("https://a.com/", text="secret", **{FATE: failed("no_text_field", "secret")})
    [gone] = run_step(TakeDown([listed(("domain", "a.com"))]), [odd])
    assert gone.metadata[FATE].reason == "takedown"
    assert "secret" not in str(removed_row(gone, gone.metadata[FATE]))


def test_another_fate_stays_where_no_entry_means_the_record(run_step: Callable[..., Any]):
    fate = failed("not_json", "line 3")
    [kept] = run_step(TakeDown([listed(("domain", "a.com"))]), [record(None, text="", **{FATE: fate})])
    assert kept.metadata[FATE] == fate


def test_every_list_of_a_source_counts_and_the_first_that_means_a_record_is_named(
    run_step: Callable[..., Any],
):
    lists = [TakedownList(c * 64, c, "2026-11-30", (Selector("id", i),)) for c, i in (("a", "1"), ("b", "2"))]
    lists.append(TakedownList("c" * 64, "c", "2026-11-30", (Selector("id", "1"),)))
    records = run_step(TakeDown(lists), [record(None, identity) for identity in "123"])
    assert [FATE in r.metadata and r.metadata[FATE].value[-1] for r in records] == ["a", "b", False]


def test_the_step_is_the_same_in_another_process(run_step: Callable[..., Any]):
    found = parse_takedown_list(GOOD.encode(), "list.yaml")
    found.match("https://a.example/", "i")  # what it has looked up goes along
    step = pickle.loads(pickle.dumps(TakeDown([found])))
    [gone] = run_step(step, [record("https://example.com/")])
    assert gone.metadata[FATE].reason == "takedown"


def test_without_lists_nothing_goes(run_step: Callable[..., Any]):
    [kept] = run_step(TakeDown([]), [record("https://a.com/")])
    assert FATE not in kept.metadata
