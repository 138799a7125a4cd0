"""Language identification against DataTrove's filter: CPU time on crawled texts; accuracy by language.

    python tests/benchmarks/curation_language.py [--repeats N] [--json FILE] [--accuracy]

Both sides use the packaged lid.176.ftz on the same texts, in turns; decisions, labels and scores must be the
same. Ours also records the scores of all languages. `--accuracy` prints, for each language of the shared gold
texts that the model knows, the share of texts labelled right, and of those kept at the default score.
"""

import argparse
import gzip
import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from datatrove.data import Document
from datatrove.pipeline.filters import LanguageFilter

from pipeline_config.curation import LanguageIdentification
from tasks.steps.language_identification import IdentifyLanguage, PackagedLid, code_of, load_model
from tasks.steps.shards import FATE
from tests.benchmarks.crawled_texts import crawled_texts

GOLD = Path(__file__).parents[3] / "shared" / "data" / "lid" / "lid_gold.jsonl.gz"
SAME = {"nb": "no", "cmn": "zh", "zho": "zh", "yue": "yue"}  # other codes of the gold texts for a label
FEWEST_TEXTS = 5


def measure(repeats: int = 5) -> dict[str, Any]:
    """CPU seconds of both sides (medians), and the ratio with its range.

    Raises:
        AssertionError: a decision, label or score differs.
    """
    texts = crawled_texts()
    load_model().predict("warm")
    step, ours, peer = IdentifyLanguage(LanguageIdentification()), [], []
    theirs = LanguageFilter(languages=["en"])
    theirs.model = PackagedLid(["en"])
    for _ in range(repeats):
        documents, twins = ([Document(text=text, id="", metadata={}) for text in texts] for _ in range(2))
        started = time.process_time()
        done = list(step.run(iter(documents)))
        ours.append(time.process_time() - started)
        started = time.process_time()
        verdicts = [theirs.filter(twin) for twin in twins]
        peer.append(time.process_time() - started)
        for document, twin, verdict in zip(done, twins, verdicts, strict=True):
            assert (FATE not in document.metadata) is bool(verdict)
            assert {name: document.metadata[name] for name in twin.metadata} == twin.metadata
    ratios = [theirs / own for own, theirs in zip(ours, peer, strict=True)]
    return {
        "ours": statistics.median(ours),
        "peer": statistics.median(peer),
        "ratio": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "documents": len(texts),
    }


def accuracy() -> dict[str, dict[str, Any]]:
    """For each language with enough gold texts: texts, share labelled right, share kept, most frequent error.

    A text is kept if its language scores above the default threshold.
    """
    known = {code_of(label) for label in load_model().get_labels()}
    least = LanguageIdentification().min_score
    found: dict[str, Counter[str]] = defaultdict(Counter)
    kept: Counter[str] = Counter()
    with gzip.open(GOLD, "rt", encoding="utf-8") as file:
        for record in map(json.loads, file):
            language = SAME.get(record["lang"], record["lang"])
            if language not in known:
                continue
            document = Document(text=record["text"], id="", metadata={})
            step = IdentifyLanguage(LanguageIdentification(languages=(language,), min_score=least))
            kept[language] += step.decide(document) is None
            found[language][document.metadata["language"]] += 1
    return {
        language: {
            "texts": labels.total(),
            "right": labels[language] / labels.total(),
            "kept": kept[language] / labels.total(),
            "error": next((label for label, _ in labels.most_common() if label != language), ""),
        }
        for language, labels in sorted(found.items())
        if labels.total() >= FEWEST_TEXTS
    }


def print_accuracy() -> None:
    """Prints a Markdown table."""
    rows = accuracy()
    print("| language | texts | labelled right | kept at 0.65 | most taken for |\n|---|---:|---:|---:|---|")
    for language, row in rows.items():
        print(f"| {language} | {row['texts']} | {row['right']:.3f} | {row['kept']:.3f} | {row['error']} |")
    texts = sum(row["texts"] for row in rows.values())
    right, kept = (
        sum(row[name] * row["texts"] for row in rows.values()) / texts for name in ("right", "kept")
    )
    mean = statistics.mean(row["right"] for row in rows.values())
    print(
        f"{len(rows)} languages, {texts} texts: {right:.3f} labelled right (mean of languages {mean:.3f}), "
        f"{kept:.3f} kept"
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--accuracy", action="store_true")
    chosen = parser.parse_args()
    if chosen.accuracy:
        print_accuracy()
        return
    result = measure(chosen.repeats)
    low, high = result["spread"]
    print(
        f"{result['documents']} texts: ours {result['ours']:.2f} CPU s, DataTrove {result['peer']:.2f}, "
        f"ratio {result['ratio']:.2f} ({low:.2f} to {high:.2f})"
    )
    if chosen.json:
        chosen.json.write_text(json.dumps({"language": result}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
