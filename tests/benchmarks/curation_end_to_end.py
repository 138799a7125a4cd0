"""The data half up to PII, against DataTrove's FineWeb recipe: the same WARC files, one core, CPU seconds.

    python tests/benchmarks/curation_end_to_end.py [--warcs GLOB] [--repeats N] [--memory]

Each side runs in a process of its own, the two in turns. Ours is what the stages run (reading record headers,
URL rules, extraction, language, quality, PII, with their ledgers as Parquet between them); DataTrove's is its
recipe for FineWeb with PII at the end, writing JSON lines once. Deduplication, which looks at all documents,
is in neither. CPU seconds are those of the process and its children, after imports.

`--memory`: the largest resident set of any process of ours, on the files and on each file eight times over.

Source of the peer's steps: `examples/fineweb.py` of DataTrove 0.10.1.
"""

import argparse
import glob
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PROJECT = Path(__file__).parents[2]
WARCS = str(PROJECT.parent / "shared/data/crawl/crawl-data/*/segments/*/warc/*.warc.gz")
TIMES_OVER = 8


def measure(repeats: int = 3, warcs: Sequence[str] = ()) -> dict[str, Any]:
    """CPU seconds of both sides (medians), their ratio with its range, and ours by stage."""
    files = list(warcs) or sorted(glob.glob(WARCS))
    ours, peer = [], []
    for _ in range(repeats):
        ours.append(in_a_process("ours", files))
        peer.append(in_a_process("peer", files))
    ratios = [theirs["seconds"] / own["seconds"] for own, theirs in zip(ours, peer, strict=True)]
    return {
        "ours": statistics.median(own["seconds"] for own in ours),
        "peer": statistics.median(theirs["seconds"] for theirs in peer),
        "ratio": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "documents": [ours[0]["documents"], peer[0]["documents"]],
        "stages": {
            name: statistics.median(own["stages"][name] for own in ours) for name in ours[0]["stages"]
        },
    }


def measure_memory(warcs: Sequence[str] = ()) -> dict[str, float]:
    """Megabytes of the largest process of ours: on the files, and on files that hold each eight times."""
    files = list(warcs) or sorted(glob.glob(WARCS))
    with tempfile.TemporaryDirectory() as folder:
        longer = []
        for number, file in enumerate(files):
            path = Path(folder) / f"{number}.warc.gz"
            path.write_bytes(Path(file).read_bytes() * TIMES_OVER)  # gzip members can follow each other
            longer.append(str(path))
        return {
            "x 1": in_a_process("ours", files)["megabytes"],
            f"x {TIMES_OVER}": in_a_process("ours", longer)["megabytes"],
        }


def in_a_process(side: str, warcs: Sequence[str]) -> dict[str, Any]:
    """What one side measured of itself."""
    done = subprocess.run(
        [sys.executable, __file__, "--side", side, *warcs],
        cwd=PROJECT,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return json.loads(done.stdout.splitlines()[-1])


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def run_steps(steps: Sequence[Any], ranks: int) -> None:
    """Runs a DataTrove pipeline in this process, rank by rank, as its executors do."""
    for rank in range(ranks):
        documents: Any = None
        for step in deepcopy(list(steps)):
            documents = step.run(documents, rank, ranks)
        deque(documents, maxlen=0)


class OneCore:
    """What a stage's function needs to run its steps in this process."""

    def __init__(self, settings: Any, folder: Path, before: "OneCore | None" = None):
        self.settings, self.folder, self.before = settings, folder, before
        self.execution = SimpleNamespace(workers=1)

    def shards(self) -> list[str]:
        """Document files of the stage before."""
        return [str(path) for path in sorted((self.before.folder / "documents").glob("*.parquet"))]

    def run_shards(self, steps: Sequence[Any], *, tasks: int, counted: bool = True) -> Any:
        """Runs the steps; the counts."""
        from tasks.stage import sum_shards

        run_steps(steps, tasks)
        return sum_shards(self.folder / "shards", tasks)


def run_ours(warcs: Sequence[str], folder: Path) -> dict[str, Any]:
    """The stages, one after the other."""
    from pipeline_config.presets import load_settings
    from tasks import (
        language_identification,
        pii_scrubbing,
        quality_filtering,
        text_extraction,
        url_filtering,
    )
    from tasks.sources import SourceFile

    settings = load_settings("mini-crawl")
    source = settings.sources[0]
    files = [SourceFile(path=f"{n}", uri=uri, identity="") for n, uri in enumerate(warcs)]
    builds = {
        "url_filtering": lambda work: url_filtering._build(work, source, files, taken=[], lists=()),
        "text_extraction": lambda work: text_extraction._build(work, {f.path: f.uri for f in files}),
        "language_identification": language_identification._build,
        "quality_filtering": quality_filtering._build,
        "pii_scrubbing": lambda work: pii_scrubbing._build(work, skip=frozenset()),
    }
    work, seconds, started = None, {}, cpu_seconds()
    for name, build in builds.items():
        before = cpu_seconds()
        work = OneCore(getattr(settings, name), folder / name, work)
        report = build(work)
        seconds[name] = cpu_seconds() - before
    return {"seconds": cpu_seconds() - started, "stages": seconds, "documents": report["kept"]}


def run_peer(warcs: Sequence[str], folder: Path) -> dict[str, Any]:
    """DataTrove's recipe, kept off the network."""
    from datatrove.pipeline.extractors import Trafilatura
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
        LanguageFilter,
        URLFilter,
    )
    from datatrove.pipeline.formatters import PIIFormatter
    from datatrove.pipeline.readers import WarcReader
    from datatrove.pipeline.writers.jsonl import JsonlWriter
    from tldextract import TLDExtract

    from tasks.steps.language_identification import PackagedLid

    started = cpu_seconds()
    urls, languages = URLFilter(), LanguageFilter()
    urls.tldextractor = TLDExtract(suffix_list_urls=(), cache_dir=None)
    languages.model = PackagedLid(languages.languages)
    (folder / "in").mkdir()
    for number, warc in enumerate(warcs):
        (folder / "in" / f"{number}.warc.gz").symlink_to(warc)
    writer = JsonlWriter(str(folder / "out"))
    steps = [
        WarcReader(str(folder / "in"), glob_pattern="*.warc.gz", default_metadata={"dump": "D"}),
        urls,
        Trafilatura(favour_precision=True),
        languages,
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
        PIIFormatter(),
        writer,
    ]
    documents = 0
    data: Any = None
    for step in steps:
        data = step.run(data, 0, 1)
    for _ in data:
        documents += 1
    return {"seconds": cpu_seconds() - started, "documents": documents}


def run_side(side: str, warcs: Sequence[str]) -> None:
    """Runs a side in this process and prints what it took."""
    with tempfile.TemporaryDirectory() as folder:
        found = (run_ours if side == "ours" else run_peer)(warcs, Path(folder))
    largest = max(
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(json.dumps(found | {"megabytes": largest / 1024}))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("warcs", nargs="*")
    parser.add_argument("--side", choices=("ours", "peer"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    chosen = parser.parse_args()
    if chosen.side:
        run_side(chosen.side, chosen.warcs)
    elif chosen.memory:
        print(json.dumps(measure_memory(chosen.warcs), indent=1))
    else:
        print(json.dumps(measure(chosen.repeats, chosen.warcs), indent=1))


if __name__ == "__main__":
    main()
