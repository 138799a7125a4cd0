"""What serving costs: the overhead of a cached stage, and the memory of idle servers.

    python tests/benchmarks/serving.py [--repeats N] [--json FILE]

Serves the preset `sample` with training cut to 10 steps, runs the main path once, then again and again with
everything cached. The overhead of a stage is the time between the lines of the run's log that say how two
stages one after the other ended; memory is each server's share (PSS) after a minute without work.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.services.served import Served, processes_of

Row = tuple[str, float, str]
CHANGES = {"training.steps": 10, "training.validation_every_steps": 10}
NAMES = {
    "prefect server start": "Prefect server",
    "flows.mlflow_server": "MLflow server",
    "flows.deployments": "deployments",
    "flows.serve": "serving command",
}


def stage_seconds(served: Served, run: str) -> list[float]:
    """Seconds from one stage's end to the next one's, in a run that computed nothing."""
    lines = served.api("POST", "logs/filter", logs={"flow_run_id": {"any_": [run]}}, limit=200)
    ends = [
        datetime.fromisoformat(line["timestamp"]) for line in lines if "from the cache" in line["message"]
    ]
    return [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(ends)]


def memory_megabytes(served: Served) -> dict[str, float]:
    """PSS of each of the served processes."""
    found = {}
    for process, line in processes_of(served.home):
        name = next((name for part, name in NAMES.items() if part in line), None)
        if name:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            kilobytes = int(next(row for row in rollup.splitlines() if row.startswith("Pss:")).split()[1])
            found[name] = kilobytes / 1024
    return found


def measure(repeats: int) -> list[Row]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-serving-") as folder:
        served = Served(Path(folder), [])
        try:
            started = time.monotonic()
            served.start()
            start_seconds = time.monotonic() - started
            time.sleep(60)
            memory = memory_megabytes(served)
            if served.ended(served.run("train-language-model", "sample", CHANGES), 1800) != "Completed":
                raise SystemExit(served.said()[-3000:])
            overheads, wholes = [], []
            for _ in range(repeats):
                run = served.run("train-language-model", "sample", CHANGES)
                served.ended(run)
                wholes.append(served.flow_run(run)["total_run_time"])
                overheads += stage_seconds(served, run)
        finally:
            served.end()
    rows = [("start_seconds", start_seconds, "one start")]
    rows += [(f"idle_megabytes_of_{name.replace(' ', '_')}", size, "PSS") for name, size in memory.items()]
    rows.append(("stage_overhead_seconds", *_median(overheads)))
    rows.append(("cached_run_seconds", *_median(wholes)))
    return rows


def _median(values: list[float]) -> tuple[float, str]:
    return statistics.median(values), f"median of {len(values)}, {min(values):.2f} to {max(values):.2f}"


def main() -> None:
    """Measures, prints a table, and writes it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    rows = measure(chosen.repeats)
    print(f"preset sample, {os.cpu_count()} cores; peer: none for these figures")
    for name, value, spread in rows:
        print(f"{name:<50} {value:>10.2f}  {spread}")
    if chosen.json:
        result = {name: {"ours": value, "peer": None, "ratio": None} for name, value, _ in rows}
        chosen.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
