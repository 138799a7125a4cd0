"""Curation against DataTrove 0.10.1, part by part and end to end: what it costs, and how good its texts are.

    python tests/benchmarks/curation.py [--only METRIC ...] [--repeats N] [--json FILE]

The same WARC files, pages, texts and URLs for both, one core, CPU seconds, in turns; a ratio above 1 means
that ours takes less. `extraction_f1` compares word F1 with trafilatura's default settings. Each part has a
module of its own beside this one, which can be run alone and says more; each is measured in a process of its
own. Needs the shared crawl.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PARTS = {  # module -> the metrics that its `measure` gives, either itself or by name
    "curation_reading": ("reading",),
    "curation_urls": ("url_filter",),
    "curation_extraction": ("extraction", "extraction_f1"),
    "curation_language": ("language",),
    "curation_quality": ("quality",),
    "curation_pii": ("pii",),
    "curation_end_to_end": ("end_to_end",),
}


def measure(module: str, repeats: int) -> dict[str, Any]:
    """What a part's module measures, in a process of its own: a result for each of its metrics."""
    code = f"import json, {module} as part; print(json.dumps(part.measure({repeats})))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])},
        check=True,
        stdout=subprocess.PIPE,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    names = PARTS[module]
    return {name: found.get(name, found) for name in names}


def main() -> None:
    """Measures, prints a table, and writes it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[name for names in PARTS.values() for name in names])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    results: dict[str, Any] = {}
    print("| metric | ratio | spread |\n|---|---:|---|")
    for module, names in PARTS.items():
        if chosen.only and not set(names) & set(chosen.only):
            continue
        for name, found in measure(module, chosen.repeats).items():
            results[name] = found
            low, high = found.get("spread") or (found["ratio"], found["ratio"])
            print(f"| {name} | {found['ratio']:.2f} | {low:.2f} to {high:.2f} |", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
