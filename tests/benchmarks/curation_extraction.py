"""Text extraction: its speed against DataTrove's, and its word F1 against trafilatura's default settings.

    python tests/benchmarks/curation_extraction.py [--repeats N] [--json FILE] [--fit]

Speed: CPU seconds, children included, that the extraction step and DataTrove's Trafilatura block (FineWeb's
settings; without its wall-clock limit, so that it does all of the work) take for the same pages, one after
the other, median of the repeats. Ours starts from bytes, DataTrove's from text.

Word F1: over the pages whose main text is known, on the half of the sites that the line model was not fitted
on. A word is a run of letters and digits, or one character of a script without spaces. `--fit` fits the line
model again on the other half and prints its weights.
"""

import argparse
import collections
import gzip
import hashlib
import itertools
import json
import logging
import re
import resource
import statistics
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import trafilatura
from datatrove.data import Document
from datatrove.pipeline.extractors import Trafilatura

from pipeline_config.curation import TextExtraction
from tasks.steps.pages.charset import decode_page
from tasks.steps.pages.extractors import engine_for
from tasks.steps.pages.main_lines import WEIGHTS, character_counts, line_features, page_lines
from tasks.steps.text_extraction import ExtractText
from tasks.steps.warc.ranges import PAYLOAD
from tasks.steps.warc.records import read_record

CRAWL = Path(__file__).parents[3] / "shared" / "data" / "crawl"
ENGINES = ("blend", "lines", "resiliparse", "trafilatura")
TIMED_PAGES = 300
PLANTED = re.compile(r"archive-copies|legacy-charset|\.example$")
WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")
SECOND_LEVEL = ("co", "com", "net", "org", "gov", "edu")


class Page(NamedTuple):
    """A page with its known main text."""

    payload: bytes
    content_type: str
    text: str
    kind: str
    """Where it is from and, where the source says, of what type it is."""
    language: str
    chosen_on: bool
    """Whether the line model was fitted on pages of its site."""


def measure(repeats: int) -> dict[str, Any]:
    """`extraction` (CPU seconds, a ratio above 1 is faster) and `extraction_f1` (with tables)."""
    logging.disable(logging.CRITICAL)
    pages = read_pages()
    return {
        "extraction": speed(pages[:: len(pages) // TIMED_PAGES], repeats),
        "extraction_f1": quality(pages),
    }


def speed(pages: list[Page], repeats: int) -> dict[str, Any]:
    """Median CPU seconds of ours and of DataTrove's block for the same pages."""
    texts = [decode_page(page.payload, page.content_type).text for page in pages]
    pairs = [(cpu_seconds_of_ours(pages), cpu_seconds_of_datatrove(texts)) for _ in range(repeats)]
    ours, peer = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = sorted(theirs / mine for mine, theirs in pairs)
    return {
        "ours": ours,
        "peer": peer,
        "ratio": statistics.median(ratios),
        "spread": [ratios[0], ratios[-1]],
        "pages": len(pages),
    }


def cpu_seconds_of_ours(pages: list[Page]) -> float:
    """CPU seconds of the extraction step with the default settings, from bytes to texts."""
    documents = [
        Document(text="", id=str(number), metadata={PAYLOAD: (page.payload, page.content_type)})
        for number, page in enumerate(pages)
    ]
    started = cpu_seconds()
    for _ in ExtractText(TextExtraction()).run(iter(documents)):
        pass
    return cpu_seconds() - started


def cpu_seconds_of_datatrove(texts: list[str]) -> float:
    """CPU seconds of DataTrove's block with FineWeb's settings, from decoded pages to texts."""
    documents = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
    started = cpu_seconds()
    for _ in Trafilatura(favour_precision=True, timeout=600).run(iter(documents)):
        pass
    return cpu_seconds() - started


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def quality(pages: list[Page]) -> dict[str, Any]:
    """Mean word F1 of the default settings and of trafilatura's, precision, recall, and by page type."""
    judged = [page for page in pages if not page.chosen_on]
    scores = {name: np.array([score(name, page) for page in judged]) for name in (*ENGINES, "peer")}
    rows: dict[str, list[int]] = {"all": list(range(len(judged)))}
    for number, page in enumerate(judged):
        rows.setdefault(page.kind, []).append(number)
        rows.setdefault("language " + page.language, []).append(number)
    table = {
        row: {"pages": len(numbers)} | {name: scores[name][numbers].mean(0).tolist() for name in scores}
        for row, numbers in sorted(rows.items(), key=lambda item: -len(item[1]))
    }
    ours, peer = table["all"]["blend"][2], table["all"]["peer"][2]
    return {"ours": ours, "peer": peer, "ratio": ours / peer, "table": table}


def score(name: str, page: Page) -> tuple[float, float, float]:
    """Precision, recall and F1 of the words that an engine finds on a page."""
    html = decode_page(page.payload, page.content_type).text
    if name == "peer":
        return word_scores(trafilatura.extract(html) or "", page.text)
    return word_scores(engine_for(TextExtraction(engine=name))(html).text, page.text)


def word_scores(found: str, gold: str) -> tuple[float, float, float]:
    """Precision, recall and F1 of the words of a text, as often as they occur."""
    ours, theirs = (collections.Counter(WORD.findall(text.lower())) for text in (found, gold))
    common = (ours & theirs).total()
    precision, recall = common / max(1, ours.total()), common / theirs.total()
    return precision, recall, 2 * precision * recall / (precision + recall) if common else 0.0


def read_pages() -> list[Page]:
    """The pages with a known main text, in the order of the crawl."""
    known = {(r["snapshot"], r["url"], r["payload_digest"]): r for r in rows_of("extraction_gold.jsonl.gz")}
    found, sites = [], {}
    for record in rows_of("manifest.jsonl.gz"):
        gold = known.pop((record["snapshot"], record["url"], record["payload_digest"]), None)
        if gold and gold["text"]:
            with (CRAWL / record["warc"]).open("rb") as file:
                file.seek(record["offset"])
                stored = read_record(file.read(record["length"]))
            found.append((gold, stored.payload, stored.content_type))
            host = urlsplit(record["url"]).netloc
            if not PLANTED.search(host):
                sites.setdefault(gold["text"][:150], site_of(host))
    return [page_of(*entry, sites) for entry in found]


def page_of(gold: dict[str, Any], payload: bytes, content_type: str, sites: dict[str, str]) -> Page:
    """A page; copies of a page are in the same half as the page, and so are all pages of a site."""
    start = gold["text"][:150]
    half = hashlib.sha256((sites.get(start) or start).encode()).digest()[0] & 1
    kind = " ".join(filter(None, (gold["source"], gold["page_type"] if "wcxb" in gold["source"] else None)))
    return Page(payload, content_type, gold["text"], kind, gold["lang"] or "unknown", half == 0)


def site_of(host: str) -> str:
    """The domain that a host belongs to, about."""
    parts = host.split(".")
    return ".".join(parts[-3:] if parts[-2:][0] in SECOND_LEVEL else parts[-2:])


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of a compressed file of JSON lines."""
    with gzip.open(CRAWL / name, "rt") as lines:
        return [json.loads(line) for line in lines]


def fit(pages: list[Page], ridge: float = 1.0) -> np.ndarray:
    """Weights of the line model by Newton's method; each page weighs about the same."""
    parts = [part for page in pages if page.chosen_on and (part := labelled(page)) is not None]
    features, labels, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    weights *= len(weights) / weights.sum()
    found = np.zeros(features.shape[1])
    for _ in range(30):
        likely = 1 / (1 + np.exp(-features @ found))
        slope = features.T @ (weights * (likely - labels)) + ridge * found
        curvature = (features * (weights * likely * (1 - likely))[:, None]).T @ features
        found -= np.linalg.solve(curvature + ridge * np.eye(len(found)), slope)
    return found


def labelled(page: Page) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(features, whether it is main text, weight) of the lines of a page."""
    lines = page_lines(decode_page(page.payload, page.content_type).text)
    if not lines:
        return None
    gold = WORD.findall(page.text.lower())
    words, pairs = set(gold), set(itertools.pairwise(gold))
    sizes = character_counts([line.text for line in lines])[:, 0].astype(float)
    labels = np.array([share_in(line.text, words, pairs) > 0.5 for line in lines], float)
    return line_features(lines), labels, (sizes + 1) / (sizes.sum() + 20)


def share_in(text: str, words: set[str], pairs: set[tuple[str, str]]) -> float:
    """Share of a line's pairs of words that the main text has; up to three words: all or none."""
    found = WORD.findall(text.lower())
    present = [pair in pairs for pair in itertools.pairwise(found)]
    if len(found) < 4:
        return float(bool(found) and all(word in words for word in found) and all(present))
    return sum(present) / len(present)


def print_table(table: dict[str, dict[str, Any]]) -> None:
    """Mean word F1 by page type and language, and precision and recall over all."""
    names = [*ENGINES, "peer"]
    print(f"{'':<28}{'pages':>6}" + "".join(f"{name:>13}" for name in names))
    for row, entry in table.items():
        print(f"{row:<28}{entry['pages']:>6}" + "".join(f"{entry[name][2]:>13.3f}" for name in names))
    for index, what in enumerate(("precision", "recall")):
        print(f"{what:<34}" + "".join(f"{table['all'][name][index]:>13.3f}" for name in names))


def main() -> None:
    """Measures, prints the tables, and writes them as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fit", action="store_true")
    chosen = parser.parse_args()
    if chosen.fit:
        for name, weight in zip(WEIGHTS, fit(read_pages()), strict=True):
            print(f"{name:<28}{weight:>8.3f}")
        return
    result = measure(chosen.repeats)
    print_table(result["extraction_f1"]["table"])
    low, high = result["extraction"]["spread"]
    print(f"speed {result['extraction']['ratio']:.2f} x DataTrove's ({low:.2f} to {high:.2f})")
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
