"""A source with Common Crawl's index, by HTTP: only the records that are wanted are fetched."""

import json
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from flows.build_corpus import build_corpus
from pipeline_config.presets import load_settings
from tasks.steps.sample_crawl import warc_record
from tests.outputs import manifests

PARAGRAPH = (
    "<p>The river of a city and its people have lived with water for years, and letters tell of it.</p>"
)
WANTED = {"fetch_status": 200, "content_mime_detected": "text/html", "content_languages": "eng"}
OTHERS = [
    {"fetch_status": 404},
    {"content_mime_detected": "application/pdf"},
    {"content_languages": "fra,deu"},
    {"url": "https://blocked.example/"},
    {"warc_record_length": None},
]
REASONS = {"index_status": 8, "index_mime": 8, "index_language": 8, "domain": 8}


class CountingHandler(BaseHTTPRequestHandler):
    """Serves the server's `files` with `Range` support, and writes down the ranges it was asked for."""

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, with_body: bool) -> None:
        data = self.server.files.get(self.path.lstrip("/"))
        span = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        first, last = (int(span[0]), int(span[2])) if span[0] else (0, len(data or b"") - 1)
        body = (data or b"")[first : last + 1]
        self.send_response(404 if data is None else 206 if span[0] else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        if span[0]:
            self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(data)}")
        self.end_headers()
        if with_body:
            self.wfile.write(body)
            self.server.served[self.path.lstrip("/")].append((first, first + len(body)))

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """A web server of `files` (path -> bytes) that remembers what it has served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), CountingHandler) as server:
        server.files, server.served = {}, defaultdict(list)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def crawl(server: ThreadingHTTPServer, tmp_path: Path) -> SimpleNamespace:
    """Two WARC files and their index, in random order: `wanted` spans by file, and `settings`."""
    choose, rows = random.Random(0), []
    wanted: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for file in ("crawl-data/a.warc.gz", "crawl-data/b.warc.gz"):
        data = b""
        for number in range(24):
            change = {} if number % 6 == 0 else OTHERS[number % 6 - 1]
            record = _record(f"https://a.example/{file}/{number}", choose, wanted=not change)
            place = {
                "warc_filename": file,
                "warc_record_offset": len(data),
                "warc_record_length": len(record),
            }
            noise = {"url_surtkey": choose.randbytes(20_000).hex()}
            rows.append({"url": f"https://a.example/{file}/{number}"} | WANTED | place | noise | change)
            if not change:
                wanted[file].append((len(data), len(data) + len(record)))
            data += record
        server.files[file] = data
    choose.shuffle(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "index", row_group_size=16, compression="none")
    server.files["cc-index/part-0.parquet"] = (tmp_path / "index").read_bytes()
    return SimpleNamespace(wanted=wanted, rows=rows, settings=_settings(server, tmp_path))


def _record(url: str, choose: random.Random, wanted: bool) -> bytes:
    text = PARAGRAPH * 20 if wanted else PARAGRAPH + choose.randbytes(150_000).hex()
    return warc_record(url, f"<html><body><article>{text}</article></body></html>".encode())


def _settings(server: ThreadingHTTPServer, folder: Path) -> str:
    source = {"name": "cc", "kind": "warc", "base": f"http://127.0.0.1:{server.server_address[1]}"}
    source |= {
        "index": ["cc-index/part-0.parquet"],
        "index_filter": {"languages": ["eng"], "statuses": [200], "mimes": ["text/html"]},
    }
    rules = {"use_integrated_lists": False, "extra_domains": ["blocked.example"]}
    values = {"sources": [source], "url_filtering": rules}
    values["execution"] = {"workers": 1, "until": "text_extraction"}
    (folder / "index.yaml").write_text(yaml.safe_dump(values))
    return str(folder / "index.yaml")


def test_only_wanted_records_are_fetched_and_every_row_has_one_fate(
    crawl: SimpleNamespace, server: ThreadingHTTPServer, home: Path
):
    build_corpus(load_settings(crawl.settings))
    served = {path: server.served[path] for path in server.files}
    for path, spans in crawl.wanted.items():
        assert sorted(served[path]) == spans
    index_bytes = sum(end - start for start, end in served["cc-index/part-0.parquet"])
    assert index_bytes < len(server.files["cc-index/part-0.parquet"]) / 5
    reports = {path.parts[-3]: json.loads(path.read_text()) for path in home.glob("store/*/*/report.json")}
    first, second = reports["url_filtering"], reports["text_extraction"]
    assert (first["read"], first["kept"], first["failed"]) == (48, 8, {"bad_index_row": 8})
    assert first["removed"] == REASONS
    assert (second["read"], second["kept"]) == (8, 8)


def test_another_choice_is_another_key_and_the_same_is_none(crawl: SimpleNamespace, home: Path):
    build_corpus(load_settings(crawl.settings))
    made = manifests(home)
    build_corpus(load_settings(crawl.settings))
    assert manifests(home) == made
    build_corpus(
        load_settings(crawl.settings, ["sources.0.index_filter.languages=[deu]", "execution.workers=2"])
    )
    assert len(manifests(home)) == len(made) + 2
