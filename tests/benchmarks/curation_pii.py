"""PII scrubbing against DataTrove's formatter: CPU time on crawled texts, precision and recall on gold spans.

    python tests/benchmarks/curation_pii.py [--repeats N] [--json FILE]

Time: the texts of the pages that have gold texts in the shared crawl, each as a document, e-mail and IP
addresses only, in CPU seconds of this process; ours and DataTrove's `PIIFormatter` by turns. Accuracy: a span
counts as right if kind, start and end are those of the gold span.
"""

import argparse
import gzip
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from datatrove.pipeline.formatters import PIIFormatter

from pipeline_config.curation import PiiScrubbing
from tasks.steps.pii_scrubbing import find_spans, scrub

SHARED = Path(__file__).parents[3] / "shared" / "data"
GOLD_KINDS = {
    "EMAIL": "email",
    "EMAIL_ADDRESS": "email",
    "IP": "ip",
    "PHONE": "phone",
    "PHONE_NUMBER": "phone",
    "CREDIT_CARD": "payment_card",
    "IBAN": "iban",
    "IBAN_CODE": "iban",
    "US_SSN": "us.ssn",
}
REGIONS = ("US", "GB", "FR", "CH", "SE", "DK", "AU", "PT")  # of the phone numbers in Presidio's texts, mostly


class Accuracy(NamedTuple):
    """Of one kind in one set: gold spans, what was found, how many of those are right."""

    gold: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.gold if self.gold else 1.0


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a gzipped JSONL file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def settings_for(case: dict[str, Any], mode: str = "tokenmill") -> PiiScrubbing:
    """All that the gold has is looked for; national phone formats of the region that the case names."""
    region = (case.get("note") or "").split(" ")[0]
    regions = (region,) if len(region) == 2 and region.isupper() else REGIONS
    return PiiScrubbing(
        mode=mode,
        phones=True,
        phone_regions=regions,
        ibans=True,
        payment_cards=True,
        national_numbers=("us.ssn",),
    )


def accuracy(file: Path, mode: str = "tokenmill") -> dict[str, Accuracy]:
    """Precision and recall by kind over a file of texts with gold spans, and the texts that hold none."""
    gold, found, right = Counter(), Counter(), Counter()
    for case in read_lines(file):
        expected = {
            (kind, span["start"], span["end"])
            for span in case["spans"]
            if (kind := GOLD_KINDS.get(span["type"]))
        }
        spans = {
            ("ip" if span.kind.startswith("ipv") else span.kind, span.start, span.end)
            for span in find_spans(case["text"], settings_for(case, mode))
        }
        gold.update(kind for kind, *_ in expected)
        found.update(kind for kind, *_ in spans)
        right.update(kind for kind, *_ in expected & spans)
    return {kind: Accuracy(gold[kind], found[kind], right[kind]) for kind in sorted({*gold, *found})}


def texts() -> list[str]:
    """The texts of crawled pages."""
    pages = read_lines(SHARED / "crawl" / "extraction_gold.jsonl.gz")
    return [page["text"] for page in pages if page.get("text")]


def cpu_seconds(run: Callable[[], Any]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def measure(repeats: int = 5) -> dict[str, Any]:
    """CPU seconds of ours (default, FineWeb's way) and of DataTrove's formatter; the ratio is peer / ours."""
    documents, result = texts(), {}
    runs: dict[str, list[float]] = {"peer": [], "tokenmill": [], "fineweb": []}
    for _ in range(repeats + 1):  # the first round warms up
        formatter = PIIFormatter()
        runs["peer"].append(cpu_seconds(lambda: [formatter.format(text) for text in documents]))  # noqa: B023
        for mode in ("tokenmill", "fineweb"):
            settings = PiiScrubbing(mode=mode)
            runs[mode].append(
                cpu_seconds(lambda: [scrub(text, str(n), settings) for n, text in enumerate(documents)])  # noqa: B023
            )
    peer = runs.pop("peer")[1:]
    for mode, seconds in runs.items():
        ratios = [theirs / ours for theirs, ours in zip(peer, seconds[1:], strict=True)]
        result["pii" if mode == "tokenmill" else "pii_fineweb"] = {
            "ours": statistics.median(seconds[1:]),
            "peer": statistics.median(peer),
            "ratio": statistics.median(ratios),
            "spread": [min(ratios), max(ratios)],
        }
    return result


def print_accuracy() -> None:
    """Prints a Markdown table of both modes."""
    print("| texts | kind | gold | precision | recall | as FineWeb: precision | recall |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name in ("pattern_cases", "presidio_synth_v2"):
        file = SHARED / "pii" / f"{name}.jsonl.gz"
        ours, peer = accuracy(file), accuracy(file, "fineweb")
        for kind, found in ours.items():
            theirs = peer.get(kind, Accuracy(found.gold, 0, 0))
            compared = f"{theirs.precision:.3f} | {theirs.recall:.3f}" if kind in ("email", "ip") else "|"
            figures = f"{found.gold} | {found.precision:.3f} | {found.recall:.3f}"
            print(f"| {name} | {kind} | {figures} | {compared} |")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    results = measure(chosen.repeats)
    for name, row in results.items():
        low, high = row["spread"]
        print(
            f"{name:<12} {row['ours']:.3f} s, DataTrove {row['peer']:.3f} s: {row['ratio']:.1f} x as fast"
            f" (median of {chosen.repeats}, {low:.1f} to {high:.1f})"
        )
    print_accuracy()
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
