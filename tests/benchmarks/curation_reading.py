"""Reading: CPU seconds from WARC files to the payloads of their pages, against DataTrove's WarcReader.

    python tests/benchmarks/curation_reading.py [--repeats N] [--json FILE]

Ours is what two stages do: pointers from all record heads, then the payloads of the pages by pointer. Theirs
does it in one pass (warcio), and makes text of the bytes on the way. Ours does that later, in the extraction;
so the seconds that the peer's own way of making text takes, measured on the same payloads in the same round,
are taken off its time. `ratio_with_text` adds them to ours instead. Both run in one process on one core, by
turns, over the same three WARC files, and must find the same pages. The tables that our stages write in
between are left out.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import cchardet
from datatrove.data import Document
from datatrove.pipeline.readers import WarcReader
from loguru import logger

from pipeline_config.curation import UrlFiltering
from tasks.steps.warc.payload import Limits
from tasks.steps.warc.pointers import ReadPointers
from tasks.steps.warc.ranges import PAYLOAD, ReadRecords

CRAWL = Path(__file__).parents[3] / "shared" / "data" / "crawl" / "crawl-data"
SNAPSHOT = "CC-MAIN-2024-10-MINI"


def measure(repeats: int = 9) -> dict[str, Any]:
    """CPU seconds of both without text (medians), and the medians of the ratios peer / ours with a range."""
    logger.disable("datatrove")
    files = [str(path) for path in sorted(CRAWL.glob(f"{SNAPSHOT}/segments/*/warc/*.warc.gz"))]
    pages = list(ours(files))
    texts = [(identity, as_text(payload)) for identity, payload in pages]
    if [(i, text) for i, text in texts if text] != [(i, text) for i, text in peer(files)]:
        raise AssertionError("the two readers do not find the same pages")
    rounds = [
        (cpu_seconds(ours, files), cpu_seconds(peer, files), cpu_seconds(to_texts, pages))
        for _ in range(repeats)
    ]
    ratios = sorted((theirs - text) / mine for mine, theirs, text in rounds)
    return {
        "ours": statistics.median(mine for mine, _, _ in rounds),
        "peer": statistics.median(theirs - text for _, theirs, text in rounds),
        "ratio": statistics.median(ratios),
        "spread": [ratios[0], ratios[-1]],
        "ratio_with_text": statistics.median(theirs / (mine + text) for mine, theirs, text in rounds),
        "pages": len(pages),
    }


def cpu_seconds(work: Callable[[Any], Iterable[Any]], argument: Any) -> float:
    """CPU seconds of going through all that `work` yields."""
    started = time.process_time()
    for _ in work(argument):
        pass
    return time.process_time() - started


def ours(files: list[str]) -> Iterator[tuple[str, bytes]]:
    """(id, payload) of each page, by our readers."""
    wanted = UrlFiltering().payload_types
    for file in files:
        pointers = ReadPointers([file], [file], "crawl", SNAPSHOT).run()
        kept = (pointer for pointer in pointers if pointer.metadata["payload_type"] in wanted)
        for document in ReadRecords([], {file: file}, Limits()).attach(kept):
            yield document.id, document.metadata.pop(PAYLOAD)[0]


def peer(files: list[str]) -> Iterator[tuple[str, str]]:
    """(id, HTML) of each page, by DataTrove's reader."""
    document: Document
    for document in WarcReader(str(Path(files[0]).parent), glob_pattern="*.warc.gz").run():
        yield document.id.strip("<>"), document.text


def to_texts(pages: list[tuple[str, bytes]]) -> Iterator[str | None]:
    """The texts of payloads."""
    for _, payload in pages:
        yield as_text(payload)


def as_text(payload: bytes) -> str | None:
    """The payload as text, found out as the peer does: by UTF-8, or else by detection."""
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        encoding = cchardet.detect(payload)["encoding"]
    try:
        return payload.decode(encoding) if encoding else None
    except (UnicodeDecodeError, LookupError):
        return None


def main() -> None:
    """Measures, prints, and writes JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = measure(chosen.repeats)
    least, most = found["spread"]
    print(f"reading {found['pages']} pages: CPU seconds {found['ours']:.3f}, DataTrove {found['peer']:.3f}")
    print(f"ratio {found['ratio']:.2f} ({least:.2f} to {most:.2f} in {chosen.repeats} rounds)")
    print(f"with the making of text on both sides {found['ratio_with_text']:.2f}")
    if chosen.json:
        chosen.json.write_text(json.dumps({"reading": found}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
