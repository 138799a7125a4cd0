"""Coverage-guided fuzzing of all that reads what a crawl holds; needs `pip install atheris`.

    python tests/fuzzing/fuzz.py TARGET SECONDS [--corpus FOLDER] [--seed N]

Inputs that reach new code are kept in the corpus and mutated again. It ends early, with the input in a file
`crash-*`, `timeout-*` or `oom-*` of the corpus, where a promise is broken: an exception that is none of those
documented, more than `INPUT_SECONDS` for one input, more than `MEGABYTES` of memory. What is found becomes a
test of the module. `quality` compares with DataTrove's own filters.
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import atheris

with atheris.instrument_imports(include=["tasks.steps"]):
    from datatrove.data import Document

    from pipeline_config.curation import PiiScrubbing, QualityFiltering, TextExtraction
    from tasks.steps.pages.extractors import engine_for
    from tasks.steps.pii_scrubbing import scrub
    from tasks.steps.quality_filtering import FilterQuality
    from tasks.steps.shards import FATE
    from tasks.steps.text_extraction import extract_page
    from tasks.steps.urls.canonical import canonical_url
    from tasks.steps.urls.lists import domain_entry, url_entry
    from tasks.steps.urls.signals import signals
    from tasks.steps.warc.heads import parse_http_head
    from tasks.steps.warc.payload import RecordFailed, decode_payload
    from tests.tasks.steps.pages.test_fuzzing import PIECES
    from tests.tasks.steps.warc.test_fuzzing import LIMITS, MEMBERS, RECORDS, SIGNS, read_all

INPUT_SECONDS, MEGABYTES, LONGEST = 10, 3000, 4096
EXTRACTION = TextExtraction()
EVERYTHING = PiiScrubbing(
    phones=True, ibans=True, payment_cards=True, national_numbers=("us.ssn", "de.idnr", "fr.nir")
)
QUALITY = QualityFiltering.model_validate(
    {"gopher_quality": {"min_doc_words": 1, "min_stop_words": 0, "max_non_alpha_words_ratio": 0.2}}
)
PROSE = "The harbour lies quiet, and the boats are out to sea. He said that they have been there.\n"


def fuzz_records(data: bytes) -> None:
    """Files of records: every byte is in one record at most, and nothing but `RecordFailed` is raised."""
    read_all(data)


def fuzz_payload(data: bytes) -> None:
    """An HTTP head and its body."""
    head, _, body = data.partition(b"\r\n\r\n")
    with contextlib.suppress(RecordFailed):
        payload, _ = decode_payload(body, parse_http_head(head + b"\r\n\r\n", 0), LIMITS)
        assert len(payload) <= LIMITS.max_bytes


def fuzz_page(data: bytes) -> None:
    """A content type, and a page."""
    content_type, _, page = data.partition(b"\n")
    engine = engine_for(EXTRACTION)
    found = extract_page((page, content_type.decode("latin-1")), engine, EXTRACTION)
    assert bool(found.text) == (found.outcome == "text")
    assert found.text.encode("utf-8").decode() == found.text
    assert "\x00" not in found.text


def fuzz_signals(data: bytes) -> None:
    """Headers, a line each, and the head of a page."""
    lines = data.split(b"\n")
    headers = [tuple(line.decode("latin-1").lower().partition(":")[::2]) for line in lines[:3]]
    assert set(signals(headers, b"\n".join(lines[3:]))) == set(signals([], b""))


def fuzz_url(data: bytes) -> None:
    """A URL: its one spelling is that of the spelling, too."""
    url = data.decode("utf-8", "surrogateescape")
    once = canonical_url(url)
    assert canonical_url(once) == once, (url, once)
    domain_entry(url)
    url_entry(url)


def fuzz_pii(data: bytes) -> None:
    """A text: spans are in order and apart, and what is between them stays."""
    text = data.decode("utf-8", "surrogatepass") if _is_text(data) else data.decode("latin-1")
    for settings in (EVERYTHING, PiiScrubbing(mode="fineweb")):
        scrubbed, end, place = scrub(text, "a", settings), 0, 0
        for span in scrubbed.spans:
            assert end <= span.start < span.end <= len(text)
            place = scrubbed.text.index(text[end : span.start], place) + span.start - end
            end = span.end
        assert scrubbed.text.endswith(text[end:])


def fuzz_quality(data: bytes) -> None:
    """A text: the reason and the text that remains are DataTrove's."""
    text = data.decode("utf-8", "replace")
    twin = Document(text=text, id="x")
    [document] = FilterQuality(QUALITY).run(iter([Document(text=text, id="x", metadata={})]))
    verdicts = (block.filter(twin) for block in datatroves_filters())
    verdict = next((verdict for verdict in verdicts if verdict is not True), (True, None))
    fate = document.metadata.get(FATE)
    assert (fate and fate.reason, document.text) == (verdict[1], twin.text), repr(text)


def datatroves_filters(made: list[Any] = []) -> list[Any]:  # noqa: B006
    """DataTrove's filters with the settings of `QUALITY`."""
    if not made:
        from datatrove.pipeline import filters

        loose = {"min_doc_words": 1, "min_stop_words": 0, "max_non_alpha_words_ratio": 0.2}
        made += [
            filters.GopherRepetitionFilter(),
            filters.GopherQualityFilter(**loose),
            filters.C4QualityFilter(filter_no_terminal_punct=False),
            filters.FineWebQualityFilter(),
        ]
    return made


def _is_text(data: bytes) -> bool:
    with contextlib.suppress(UnicodeDecodeError):
        data.decode("utf-8", "surrogatepass")
        return True
    return False


HEADS = [
    f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: {name}\r\n\r\n".encode()
    for name in ("gzip", "br", "zstd", "deflate", "gzip, chunked")
]
URLS = [
    b"https://user@www.example.com:443/a/../b%7e?utm_source=x&b=2&a=1#top",
    "http://münchen.example/ü".encode(),
    b"http://0x7f.1/",
    b"https://[::ffff:1.2.3.4]/;jsessionid=5",
]
PERSONAL = [
    b"Write to ann.lee@mail.company.com or call +1 212 555 0100.",
    b"8.8.8.8 2001:4860:4860::8888 DE89370400440532013000 4111 1111 1111 1111 536-90-4399 1.2.3.4.5",
]
SEEDS: dict[str, list[bytes]] = {
    "records": [*MEMBERS[:2], *RECORDS[:2], *SIGNS],
    "payload": [head + body for head in HEADS for body in (MEMBERS[0], b"<p>text</p>" * 20)],
    "page": [b"text/html; charset=utf-8\n" + piece.encode("utf-8", "replace") * 3 for piece in PIECES],
    "signals": [
        b'x-robots-tag: noai\ntdm-reservation: 1\n\n<html lang=de><meta name=robots content="a,b">',
    ],
    "url": URLS,
    "pii": PERSONAL,
    "quality": [PROSE.encode() * 8, PROSE.replace(". ", " :) ").encode() * 5, "- a…\n".encode() * 30],
}
TARGETS: dict[str, Callable[[bytes], None]] = {
    name: globals()[f"fuzz_{name}"]
    for name in ("records", "payload", "page", "signals", "url", "pii", "quality")
}


def main() -> None:
    """Fuzzes one target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("seconds", type=int)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    chosen = parser.parse_args()
    corpus = chosen.corpus or Path(tempfile.mkdtemp(prefix=f"fuzz-{chosen.target}-"))
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[chosen.target]):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = corpus / "words.dict"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in sorted({*SIGNS, *map(_bytes, PIECES)})))
    options = {
        "max_total_time": chosen.seconds,
        "timeout": INPUT_SECONDS,
        "rss_limit_mb": MEGABYTES,
        "max_len": LONGEST,
        "dict": words,
        "seed": chosen.seed,
        "artifact_prefix": f"{corpus}{os.sep}",
        "print_final_stats": 1,
    }
    arguments = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], TARGETS[chosen.target])
    atheris.Fuzz()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
