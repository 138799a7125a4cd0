"""Quality rules against DataTrove's filters in FineWeb's order: CPU time on the English pages of the crawl.

    python tests/benchmarks/curation_quality.py [--repeats N] [--json FILE]

Both sides get the same texts in the same order in one process, in turns; reasons and resulting texts must be
the same. Ours records every rule's value for every document, DataTrove's stop at the first rule that is
broken. What a worker remembers of earlier texts counts as in a worker: it starts empty, reads one half of the
texts (`first_half_ratio`), and is measured on the other half. `filters`: CPU seconds of each filter in that
half, of the documents that reach it in DataTrove's case and of all of them in ours, whose words are made by
the first one.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils.text import split_into_parts

from pipeline_config.curation import QualityFiltering
from tasks.steps.quality.rules import Text, c4_lines, fineweb, gopher_quality, gopher_repetition
from tasks.steps.quality.words import words_of_language
from tasks.steps.quality_filtering import FilterQuality
from tests.benchmarks.crawled_texts import english_texts

SETTINGS = QualityFiltering()
PEERS = {
    "gopher_repetition": GopherRepetitionFilter(),
    "gopher_quality": GopherQualityFilter(),
    "c4": C4QualityFilter(filter_no_terminal_punct=False),
    "fineweb": FineWebQualityFilter(),
}
Outcome = tuple[str | None, str]


def measure(repeats: int = 3) -> dict[str, Any]:
    """CPU seconds of both sides (medians), the ratio with its range, and each filter's.

    Raises:
        AssertionError: a reason or a text differs.
    """
    texts = english_texts()
    halves = texts[::2], texts[1::2]
    words_of_language("en").words("a"), PEERS["gopher_quality"].filter(Document(text="a", id=""))
    rounds = [one_round(halves) for _ in range(repeats)]
    ratios = [found["peer"] / found["ours"] for found in rounds]
    filters = {
        name: {
            side: statistics.median(found[f"{side}_filters"][name] for found in rounds)
            for side in ("ours", "peer")
        }
        for name in PEERS
    }
    return {
        "ours": statistics.median(found["ours"] for found in rounds),
        "peer": statistics.median(found["peer"] for found in rounds),
        "ratio": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "first_half_ratio": statistics.median(found["first_half_ratio"] for found in rounds),
        "documents": len(halves[1]),
        "filters": filters,
    }


def one_round(halves: tuple[Sequence[str], Sequence[str]]) -> dict[str, Any]:
    """Both sides from an empty memory, on one half and then on the other."""
    words_of_language.cache_clear()
    step = FilterQuality(SETTINGS)
    step.decide(Document(text="a", id="", metadata={}))
    before, _ = cpu_seconds(lambda: decide(step, halves[0]))
    own, outcomes = cpu_seconds(lambda: decide(step, halves[1]))
    own_filters = filters_of_ours(halves[1])
    theirs_before, _ = cpu_seconds(lambda: filter_by_datatrove(halves[0], Counter()))
    peer_filters: Counter[str] = Counter()
    theirs, expected = cpu_seconds(lambda: filter_by_datatrove(halves[1], peer_filters))
    assert outcomes == expected, "reasons or texts are not those of DataTrove"
    return {
        "ours": own,
        "peer": theirs,
        "first_half_ratio": theirs_before / before,
        "ours_filters": own_filters,
        "peer_filters": peer_filters,
    }


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """(CPU seconds, result) of some work."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def decide(step: FilterQuality, texts: Iterable[str]) -> list[Outcome]:
    """Our reason for each text, and what the text becomes."""
    outcomes = []
    for text in texts:
        document = Document(text=text, id="", metadata={})
        fate = step.decide(document)
        outcomes.append((fate.reason if fate else None, document.text))
    return outcomes


def filter_by_datatrove(texts: Iterable[str], seconds: Counter[str]) -> list[Outcome]:
    """DataTrove's reason for each text, and what the text becomes; adds the CPU seconds of each filter."""
    outcomes = []
    split_into_parts.cache_clear()
    for text in texts:
        document, reason = Document(text=text, id=""), None
        for name, block in PEERS.items():
            started = time.process_time()
            verdict = block.filter(document)
            seconds[name] += time.process_time() - started
            if verdict is not True:
                reason = verdict[1]
                break
        outcomes.append((reason, document.text))
    return outcomes


def filters_of_ours(texts: Iterable[str]) -> dict[str, float]:
    """CPU seconds of our rules by filter, of texts whose words are known by now."""
    tool, seconds = words_of_language("en"), Counter()

    def add(name: str, work: Callable[[], Any]) -> Any:
        used, result = cpu_seconds(work)
        seconds[name] += used
        return result

    for text in texts:
        whole = Text(text, tool)
        add("gopher_repetition", lambda: list(gopher_repetition(whole, SETTINGS.gopher_repetition)))  # noqa: B023
        try:
            add("gopher_quality", lambda: list(gopher_quality(whole, SETTINGS.gopher_quality)))  # noqa: B023
        except ZeroDivisionError:
            continue
        found = add("c4", lambda: c4_lines(text, tool, SETTINGS.c4))  # noqa: B023
        after = Text(found.text, tool)
        add("fineweb", lambda: list(fineweb(after, SETTINGS.fineweb, found.words)))  # noqa: B023
    return dict(seconds)


def main() -> None:
    """Measures, prints a table, and writes it as JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    result = measure(chosen.repeats)
    print("| filter | ours (CPU s) | DataTrove (CPU s) | ratio |\n|---|---:|---:|---:|")
    for name, row in [*result["filters"].items(), ("all", result)]:
        print(f"| {name} | {row['ours']:.3f} | {row['peer']:.3f} | {row['peer'] / row['ours']:.1f} |")
    low, high = result["spread"]
    print(
        f"{result['documents']} documents; ratio {result['ratio']:.1f} ({low:.1f} to {high:.1f}); from an "
        f"empty memory {result['first_half_ratio']:.1f}; reasons and texts the same"
    )
    if chosen.json:
        chosen.json.write_text(json.dumps({"quality": result}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
