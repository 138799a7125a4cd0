"""Reading: CPU seconds from WARC files to the pages' HTML as text, against DataTrove's WarcReader.

    python tests/benchmarks/curation_reading.py [--repeats N] [--json FILE]

Ours is what two stages do: pointers from all record heads, then the payloads of the pages by pointer. Theirs
does it in one pass (warcio). Both run in one process on one core, by turns, over the same three WARC files,
make text of bytes in the same way, and must find the same pages. The tables that our stages write in between
are left out.
"""

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cchardet
from datatrove.data import Document
from datatrove.pipeline.readers import WarcReader

from pipeline_config.curation import UrlFiltering
from tasks.steps.http_payload import Limits
from tasks.steps.record_pointers import ReadPointers
from tasks.steps.record_ranges import PAYLOAD, ReadRecords

CRAWL = Path(__file__).parents[3] / "shared" / "data" / "crawl" / "crawl-data"
SNAPSHOT = "CC-MAIN-2024-10-MINI"


def measure(repeats: int = 7) -> dict[str, Any]:
    """CPU seconds of both (medians), and the median of the ratios peer / ours with its range."""
    logging.getLogger("datatrove").setLevel(logging.ERROR)
    files = [str(path) for path in sorted(CRAWL.glob(f"{SNAPSHOT}/segments/*/warc/*.warc.gz"))]
    pages = {name: sorted(pages(files)) for name, pages in (("ours", ours), ("peer", peer))}
    if pages["ours"] != pages["peer"]:
        raise AssertionError("the two readers do not find the same pages")
    rounds = [(cpu_seconds(ours, files), cpu_seconds(peer, files)) for _ in range(repeats)]
    ratios = sorted(theirs / mine for mine, theirs in rounds)
    return {
        "ours": statistics.median(mine for mine, _ in rounds),
        "peer": statistics.median(theirs for _, theirs in rounds),
        "ratio": statistics.median(ratios),
        "spread": [ratios[0], ratios[-1]],
        "pages": len(pages["ours"]),
    }


def cpu_seconds(pages: Callable[[list[str]], Iterator[tuple[str, int]]], files: list[str]) -> float:
    """CPU seconds of one pass over the files."""
    started = time.process_time()
    for _ in pages(files):
        pass
    return time.process_time() - started


def ours(files: list[str]) -> Iterator[tuple[str, int]]:
    """(id, characters of HTML) of each page, by our readers."""
    wanted = UrlFiltering().payload_types
    for file in files:
        pointers = ReadPointers([file], [file], "crawl", SNAPSHOT).run()
        kept = (pointer for pointer in pointers if pointer.metadata["payload_type"] in wanted)
        for document in ReadRecords([], {file: file}, Limits()).attach(kept):
            html = as_text(document.metadata.pop(PAYLOAD)[0])
            if html:
                yield document.id, len(html)


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


def peer(files: list[str]) -> Iterator[tuple[str, int]]:
    """(id, characters of HTML) of each page, by DataTrove's reader."""
    folder = Path(files[0]).parent
    document: Document
    for document in WarcReader(str(folder), glob_pattern="*.warc.gz").run():
        yield document.id.strip("<>"), len(document.text)


def main() -> None:
    """Measures, prints, and writes JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = measure(chosen.repeats)
    least, most = found["spread"]
    print(f"reading {found['pages']} pages: CPU seconds {found['ours']:.3f}, DataTrove {found['peer']:.3f}")
    print(f"ratio {found['ratio']:.2f} ({least:.2f} to {most:.2f} in {chosen.repeats} rounds)")
    if chosen.json:
        chosen.json.write_text(json.dumps({"reading": found}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
