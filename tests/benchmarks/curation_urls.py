"""The cost of the URL filter beside DataTrove's: CPU time per URL, time to load, memory of a worker.

    python tests/benchmarks/curation_urls.py [--repeats N] [--json FILE]

Each repetition is a fresh process for each of the two, one after the other: it loads the lists, decides about
the URLs of the shared crawl once to warm up, and then about the same URLs with another first label of their
hosts, so that nothing that was remembered helps. Both must give the same decisions and reasons. Memory is
what the process has for itself after the lists were loaded and used, and had not before: what each worker
costs.
"""

import argparse
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
MANIFEST = PROJECT.parent / "shared" / "data" / "crawl" / "manifest.jsonl.gz"
SIDES = ("ours", "peer")


def measure(repeats: int) -> dict[str, Any]:
    """Medians of CPU microseconds per URL, load seconds and own megabytes of both; `ratio` is peer to ours.

    Raises:
        RuntimeError: a process failed, or the two decide differently.
    """
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    _one("ours")  # makes the compact lists, which all processes of a machine share
    for _ in range(repeats):
        for side in SIDES:
            runs[side].append(_one(side))
    if len({json.dumps(run["reasons"]) for side in SIDES for run in runs[side]}) > 1:
        raise RuntimeError("ours and DataTrove's filter decide differently")
    ratios = [p["cpu_us"] / o["cpu_us"] for o, p in zip(runs["ours"], runs["peer"], strict=True)]
    found: dict[str, Any] = {
        side: {
            name: round(statistics.median(run[name] for run in runs[side]), 3)
            for name in ("cpu_us", "load_seconds", "own_mb")
        }
        for side in SIDES
    }
    spread = [round(min(ratios), 2), round(max(ratios), 2)]
    return found | {
        "metric": "url_filter",
        "urls": runs["ours"][0]["urls"],
        "unit": "CPU microseconds per URL",
        "ratio": round(statistics.median(ratios), 2),
        "spread": spread,
        "repeats": repeats,
    }


def _one(side: str) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, __file__, "--side", side], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"measuring {side} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _measured(side: str) -> dict[str, Any]:
    with gzip.open(MANIFEST, "rt") as file:
        urls = [json.loads(line)["url"] for line in file]
    before, own = time.process_time(), _own_bytes()
    decide = _ours() if side == "ours" else _theirs()
    loaded = time.process_time() - before
    for url in urls:
        decide(url)
    others = [url.replace("://", "://m.", 1) for url in urls]
    before = time.process_time()
    reasons = [decide(url) for url in others]
    seconds = time.process_time() - before
    return {
        "urls": len(others),
        "cpu_us": 1e6 * seconds / len(others),
        "load_seconds": loaded,
        "own_mb": (_own_bytes() - own) / 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "reasons": reasons,
    }


def _ours() -> Any:
    from tasks.steps.urls.rules import UrlRules

    rules = UrlRules(soft_word_threshold=2)
    return lambda url: (rules.verdict(url) or [None])[0]


def _theirs() -> Any:
    import warnings

    from datatrove.data import Document
    from datatrove.pipeline.filters import URLFilter
    from tldextract import TLDExtract

    warnings.simplefilter("ignore", DeprecationWarning)
    block = URLFilter()
    block.tldextractor = TLDExtract(suffix_list_urls=(), cache_dir=None)
    block.download_data()

    def decide(url: str) -> str | None:
        found = block.filter(Document(text="", id="", metadata={"url": url}))
        return None if found is True else found[1]

    return decide


def _own_bytes() -> int:
    """Memory that no file backs: what the lists' file gives is shared by all processes of the machine."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def main() -> None:
    """Prints what was measured, and writes it to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    found = _measured(chosen.side) if chosen.side else measure(chosen.repeats)
    print(json.dumps(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
