"""Whether the URL rules decide as DataTrove's own filter, which is run beside them."""

import gzip
import json
import random

import pytest
from datatrove.data import Document
from datatrove.pipeline.filters import URLFilter
from hypothesis import given, settings
from hypothesis import strategies as st
from tldextract import TLDExtract

from tasks.steps.urls import rules
from tasks.steps.urls.rules import UrlRules, words_of

# DataTrove 0.10 asks tldextract 5 for a property that is to be renamed.
pytestmark = pytest.mark.filterwarnings("ignore:The 'registered_domain' property:DeprecationWarning")

LABELS = (
    "www a example 4chan xn--mnchen-3ya münchen ＡＢ _x com co uk kawasaki jp org blogspot ck 10 0x7f 255"
)
LABEL = st.sampled_from([*LABELS.split(), "", "\ud800", "%41", "[", "::1]", "-"])
DOT = st.sampled_from([".", ".", ".", "。", "．", "｡", ".."])
PIECES = "/ ? # & = %2e % @ : // \\ porn PORN sex milf teen girl adult hot amateur xxx - _ 1 é 😈"
PIECE = st.sampled_from([*PIECES.split(), " ", "\t", "\n", "\x00", "\udfff", "a" * 300])
STARTS = [
    "http://",
    "https://",
    "HTTP://",
    "//",
    "",
    "mailto:",
    "://",
    "ftp://u:p@",
    "http://user@",
    "http:/",
]


@st.composite
def hosts(draw: st.DrawFn) -> str:
    """Names and addresses of hosts, good and bad, some of them listed."""
    known = draw(st.booleans())
    name = draw(st.sampled_from(LISTED)) if known else draw(LABEL)
    for _ in range(draw(st.integers(0, 3))):
        name = draw(LABEL) + draw(DOT) + name
    change = draw(st.sampled_from([str, str, str.upper, str.title]))
    return change(name) + draw(st.sampled_from(["", "", ".", ":80", ":", ":x", "。"]))


@st.composite
def urls(draw: st.DrawFn) -> str:
    """URLs of all sorts, empty ones left out."""
    start = draw(st.sampled_from(STARTS))
    rest = draw(st.lists(PIECE | st.sampled_from(WORDS) | st.text(max_size=5), max_size=8))
    return start + draw(hosts()) + "".join(rest) or "/"


@pytest.fixture(scope="session")
def theirs() -> URLFilter:
    """DataTrove's filter, kept off the network."""
    block = URLFilter()
    block.tldextractor = TLDExtract(suffix_list_urls=(), cache_dir=None)
    block.download_data()
    return block


@pytest.fixture(scope="session")
def ours() -> UrlRules:
    """The rules under test."""
    return UrlRules(soft_word_threshold=2)


def entries_of(name: str) -> list[str]:
    archive = rules.assets() / rules.LISTS
    return [entry.decode() for _, some in rules._listed(archive, name) for entry in some]


LISTED = ["0-1sex.com", "porn", "10putes.com", "118.123.4.224", "10.adultwork.co.uk"]
WORDS = sorted(
    words_of("banned_words.txt") | words_of("soft_banned_words.txt") | words_of("banned_subwords.txt")
)


def differing(ours: UrlRules, theirs: URLFilter, urls: list[str]) -> list[tuple[str, object, object]]:
    found = []
    for url in urls:
        verdict = ours.verdict(url)
        answer = theirs.filter(Document(text="", id="", metadata={"url": url}))
        reason = None if answer is True else answer[1]
        if (verdict and verdict[0]) != reason:
            found.append((url, verdict, reason))
    return found


def test_all_urls_of_the_crawl_are_decided_alike(ours, theirs, shared_data):
    with gzip.open(shared_data / "crawl" / "manifest.jsonl.gz", "rt") as file:
        crawled = [json.loads(line)["url"] for line in file]
    assert differing(ours, theirs, crawled) == []


def test_urls_made_from_entries_of_the_lists_are_decided_alike(ours, theirs):
    choose = random.Random(0)
    domains = choose.sample(entries_of("domains"), 4000)
    made = [f"http://{d}/" for d in domains] + [f"https://www.{d}:8080/a?b" for d in domains]
    made += [f"http://x{d}." for d in domains] + [f"http://{d.upper()}" for d in domains[:500]]
    made += [d.partition(".")[2] for d in domains[:500] if "." in d]
    listed = choose.sample(entries_of("urls"), 1000)
    made += listed + [f"http://{url}" for url in listed] + [f"{url}/" for url in listed]
    assert differing(ours, theirs, made) == []
    reasons = {verdict[0] for url in made if (verdict := ours.verdict(url))}
    assert {"domain", "subdomain", "url", "blacklisted_subword", "hard_blacklisted"} <= reasons


def test_every_word_is_looked_for_alike(ours, theirs):
    frames = ["http://a.example/{}", "http://a.example/{}s", "http://a.example/x{}-x", "http://{}.example/"]
    made = [frame.format(word) for frame in frames for word in WORDS]
    made += [f"http://a.example/{a}/{b}" for a, b in zip(WORDS, WORDS[7:], strict=False)]
    made += [url.upper() for url in made]
    assert differing(ours, theirs, made) == []
    assert "" not in WORDS


@given(st.data())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_odd_urls_are_decided_alike(ours, theirs, data):
    assert differing(ours, theirs, [data.draw(urls())]) == []


@pytest.mark.parametrize("part", ["a.", "[", "%41", "/..", "sex-", "@", "。"])
def test_very_long_urls_are_decided_alike(ours, theirs, part):
    url = "http://" + part * (200_000 // len(part))
    assert differing(ours, theirs, [url, f"{url}com/", f"http://a.example/{part * 20_000}"]) == []


@pytest.mark.parametrize("threshold", [1, 3])
def test_the_threshold_of_soft_banned_words_is_a_setting(threshold):
    words = sorted(words_of("soft_banned_words.txt") - words_of("banned_words.txt"))[:3]
    url = f"http://a.example/{words[0]}/{words[1]}"
    verdict = UrlRules(threshold).verdict(url)
    assert (verdict and verdict[0] == "soft_blacklisted") == (True if threshold == 1 else None)
