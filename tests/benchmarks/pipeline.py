"""The main path: seconds of a fully cached rerun, and documents per second of each stage.

    python tests/benchmarks/pipeline.py [--json FILE] [--preset PRESET] [--repeats N]

Runs the preset in a temporary data folder, then again `--repeats` times. There is no peer for these figures:
they are measured alone, the median of the repeats with their range, on whatever else this machine does.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

Row = tuple[str, float, str]


def main() -> None:
    """Measures, prints a table, and writes it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--preset", default="mini-crawl")
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        first = run(chosen.preset, home)
        cached = [run(chosen.preset, home) for _ in range(chosen.repeats)]
        rows = [("first_run_seconds", first, "one run"), cached_row(cached), *stage_rows(Path(home))]
    print(f"preset {chosen.preset}, {os.cpu_count()} cores; peer: none for these figures")
    for name, value, spread in rows:
        print(f"{name:<50} {value:>10.1f}  {spread}")
    if chosen.json:
        result = {name: {"ours": value, "peer": None, "ratio": None} for name, value, _ in rows}
        chosen.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def run(preset: str, home: str) -> float:
    """Wall-clock seconds of the command, from start to exit."""
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "flows.train_language_model", preset],
        env={**os.environ, "TOKENMILL_HOME": home},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.monotonic() - started


def cached_row(seconds: list[float]) -> Row:
    """The median of the cached reruns, with their range."""
    spread = f"median of {len(seconds)}, {min(seconds):.1f} to {max(seconds):.1f}"
    return "cached_rerun_seconds", statistics.median(seconds), spread


def stage_rows(home: Path) -> list[Row]:
    """Documents read per second by each stage of the first run, from the stages' own reports."""
    reports: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(home.glob("store/*/*/report.json")):
        report = json.loads(path.read_text("utf-8"))
        if "read" in report:
            made = json.loads((path.parent / "_computation.json").read_text("utf-8"))
            reports.setdefault(path.parts[-3], []).append(report | made)
    rows = []
    for stage, parts in reports.items():
        read, seconds = sum(r["read"] for r in parts), sum(r["seconds"] for r in parts)
        rows.append((f"{stage}_documents_per_second", read / seconds, f"{read} in {seconds:.1f} s"))
    return rows


if __name__ == "__main__":
    main()
