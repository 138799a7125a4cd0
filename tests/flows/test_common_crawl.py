"""The preset `common-crawl` against a local server, laid out as Common Crawl, with Range support."""

import gzip
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flows.build_corpus import build_corpus
from pipeline_config.presets import load_settings
from tasks.sources import source_files
from tasks.steps.warc.pointers import read_pointers
from tasks.store import Store


class RangeHandler(SimpleHTTPRequestHandler):
    """Serves files with `Range` support, as object stores do."""

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        span = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        path = Path(self.translate_path(self.path))
        if not span[0] or not path.is_file():
            super().do_GET()
            return
        size = path.stat().st_size
        first, last = int(span[0]), min(int(span[2] or size - 1), size - 1)
        with path.open("rb") as file:
            file.seek(first)
            body = file.read(last - first + 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def crawl_server(shared_data: Path) -> Iterator[str]:
    handler = partial(RangeHandler, directory=str(shared_data / "crawl"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def overrides(base: str) -> list[str]:
    snapshot = "CC-MAIN-2024-10-MINI"
    return [f"sources.0.base={base}", f"sources.0.uris=[crawl-data/{snapshot}/warc.paths.gz]"]


def test_the_paths_list_is_cut_to_max_warcs(crawl_server: str, shared_data: Path, tmp_path: Path):
    [source] = load_settings("common-crawl", [*overrides(crawl_server), "sources.0.max_warcs=2"]).sources
    paths = shared_data / "crawl" / "crawl-data" / "CC-MAIN-2024-10-MINI" / "warc.paths.gz"
    expected = gzip.decompress(paths.read_bytes()).decode().split()[:2]
    files = source_files(source, Store(tmp_path))
    assert [file.path for file in files] == expected
    assert all(file.identity for file in files)


def test_records_are_the_same_by_http_and_from_disk(crawl_server: str, shared_data: Path, tmp_path: Path):
    [source] = load_settings("common-crawl", overrides(crawl_server)).sources
    [file] = source_files(source, Store(tmp_path))
    assert list(read_pointers(file.uri)) == list(read_pointers(str(shared_data / "crawl" / file.path)))


@pytest.mark.slow
def test_a_corpus_by_http_is_the_corpus_from_disk(crawl_server: str, shared_data: Path, home: Path):
    common = ["url_filtering.use_integrated_lists=false", "sources.0.max_warcs=1", "execution.workers=2"]
    by_http = build_corpus(load_settings("common-crawl", [*common, *overrides(crawl_server)]))
    from_disk = build_corpus(load_settings("common-crawl", [*common, *overrides(str(shared_data / "crawl"))]))
    assert by_http.outputs["corpus"].digest == from_disk.outputs["corpus"].digest
