"""The files of a source, and what names their content."""

import gzip
import hashlib
import http.server
import os
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pipeline_config.errors import SourceError, TokenmillError, UnreachableError
from pipeline_config.settings import Source
from tasks import sources
from tasks.sources import SourceFile, dataset_identity, source_files
from tasks.store import Store, file_digest

FILES = {"b.warc.gz": b"bb", "a.warc.gz": b"a", "deep/c.warc.gz": b"ccc", "empty.warc.gz": b""}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder of files, and a list of three of them."""
    folder = tmp_path / "crawl"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "warc.paths.gz").write_bytes(gzip.compress(b"deep/c.warc.gz\n\nb.warc.gz\na.warc.gz\n"))
    return folder


def source(base: Path | str, *uris: str, **more) -> Source:
    return Source(name="crawl", kind="warc", base=str(base), uris=uris, **more)


@pytest.mark.parametrize(
    ("uris", "more", "paths"),
    [
        pytest.param(["[ab].warc.gz"], {}, ["a.warc.gz", "b.warc.gz"], id="glob is sorted"),
        pytest.param(["b.warc.gz", "a.warc.gz"], {}, ["b.warc.gz", "a.warc.gz"], id="order of uris"),
        pytest.param(["b.warc.gz", "?.warc.gz"], {}, ["b.warc.gz", "a.warc.gz"], id="each file once"),
        pytest.param(["*/*.warc.gz"], {}, ["deep/c.warc.gz"], id="relative to base"),
        pytest.param(["**/c.*"], {}, ["deep/c.warc.gz"], id="at any depth"),
        pytest.param(
            ["warc.paths.gz"], {}, ["deep/c.warc.gz", "b.warc.gz", "a.warc.gz"], id="list in its order"
        ),
        pytest.param(
            ["warc.paths.gz"], {"max_warcs": 2}, ["deep/c.warc.gz", "b.warc.gz"], id="start of a list"
        ),
        pytest.param(["[ab]*"], {"max_warcs": 1}, ["a.warc.gz"], id="start of a glob"),
        pytest.param(["a.warc.gz"], {"max_warcs": 9}, ["a.warc.gz"], id="more than there are"),
    ],
)
def test_the_files_of_a_source(
    base: Path, store: Store, uris: list[str], more: dict, paths: list[str]
) -> None:
    files = source_files(source(base, *uris, **more), store)
    assert [file.path for file in files] == paths
    assert [file.uri for file in files] == [f"{base}/{path}" for path in paths]
    assert [file.identity for file in files] == [hashlib.sha256(FILES[path]).hexdigest() for path in paths]


def test_files_beyond_max_warcs_need_not_exist(base: Path, store: Store) -> None:
    files = source_files(source(base, "a.warc.gz", "not-yet.warc.gz", max_warcs=1), store)
    assert [file.path for file in files] == ["a.warc.gz"]


@pytest.mark.parametrize(
    "end", [pytest.param("", id="plain"), pytest.param("/", id="with a slash at the end")]
)
def test_a_base_relative_to_the_working_folder(
    base: Path, store: Store, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(base.parent)
    files = source_files(source(f"{base.name}{end}", "?.warc.gz"), store)
    assert [file.path for file in files] == ["a.warc.gz", "b.warc.gz"]


def test_an_absolute_path_needs_no_base(base: Path, store: Store) -> None:
    uri = str(base / "a.warc.gz")
    assert source_files(source("", uri), store) == [SourceFile(uri, uri, hashlib.sha256(b"a").hexdigest())]


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        pytest.param("x.warc.gz", "there is no file .*/x.warc.gz", id="missing file"),
        pytest.param("*.arc", r"no file matches .*/\*\.arc", id="no match"),
        pytest.param("deep", "/deep is a folder; name its files", id="folder"),
        pytest.param("empty.warc.gz", r"/empty.warc.gz is empty \(0 bytes\)", id="empty file"),
        pytest.param("x.paths.gz", "cannot read the list of files .*/x.paths.gz", id="missing list"),
        pytest.param("damaged.paths.gz", "cannot read the list of files .*/damaged", id="damaged list"),
        pytest.param("nothing.paths.gz", "the list of files .*/nothing.paths.gz is empty", id="empty list"),
    ],
)
def test_a_source_that_cannot_be_read_is_named(base: Path, store: Store, uri: str, words: str) -> None:
    (base / "damaged.paths.gz").write_bytes((base / "warc.paths.gz").read_bytes()[:20])
    (base / "nothing.paths.gz").write_bytes(gzip.compress(b"\n\n"))
    with pytest.raises(SourceError, match=f"source crawl: .*{words}"):
        source_files(source(base, uri), store)


def test_the_identity_does_not_depend_on_the_base(base: Path, store: Store, tmp_path: Path) -> None:
    before = source_files(source(base, "a.warc.gz"), store)
    base.rename(tmp_path / "moved")
    after = source_files(source(tmp_path / "moved", "a.warc.gz"), store)
    assert [(f.path, f.identity) for f in before] == [(f.path, f.identity) for f in after]


def test_an_unchanged_file_is_read_once(base: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = source_files(source(base, "a.warc.gz"), store)
    read: list[Path] = []

    def count(path: Path) -> str:
        read.append(path)
        return file_digest(path)

    monkeypatch.setattr(sources, "file_digest", count)
    assert source_files(source(base, "a.warc.gz", "b.warc.gz"), store)[:1] == first
    assert [path.name for path in read] == ["b.warc.gz"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: path.write_bytes(b"aa"), id="another size"),
        pytest.param(lambda path: path.write_bytes(b"z"), id="same size"),
        pytest.param(lambda path: replace_keeping_time(path, b"z"), id="replaced, same size and time"),
    ],
)
def test_a_changed_file_has_another_identity(base: Path, store: Store, change) -> None:
    path = base / "a.warc.gz"
    before = source_files(source(base, "a.warc.gz"), store)[0].identity
    os.utime(path, ns=(1, 1))
    source_files(source(base, "a.warc.gz"), store)
    change(path)
    after = source_files(source(base, "a.warc.gz"), store)[0].identity
    assert after == hashlib.sha256(path.read_bytes()).hexdigest() != before


def replace_keeping_time(path: Path, content: bytes) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(content)
    os.utime(other, ns=(1, 1))
    os.replace(other, path)


def test_a_damaged_memory_of_digests_is_forgotten(base: Path, store: Store) -> None:
    before = source_files(source(base, "a.warc.gz"), store)
    (store.root / ".locks" / "digests.json").write_text("{")
    assert source_files(source(base, "a.warc.gz"), store) == before


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files with an ETag, and ranges of them."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(False)

    def do_GET(self) -> None:
        self.answer(True)

    def answer(self, with_body: bool) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        body, status = path.read_bytes(), 200
        size = len(body)
        if wanted := self.headers.get("Range"):
            start, end = wanted.removeprefix("bytes=").split("-")
            body, status = body[int(start) : int(end or size) + 1], 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(body) - 1}/{size}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.md5(path.read_bytes()).hexdigest()}"')
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@pytest.fixture
def url(base: Path) -> Iterator[str]:
    """The folder of files behind a web server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(base)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_identity_of_a_remote_file_is_its_size_and_etag(url: str, store: Store) -> None:
    (file,) = source_files(source(url, "b.warc.gz"), store)
    assert (file.path, file.uri) == ("b.warc.gz", f"{url}/b.warc.gz")
    assert f' 2 "{hashlib.md5(b"bb").hexdigest()}"' in file.identity


def test_a_changed_remote_file_has_another_identity(url: str, base: Path, store: Store) -> None:
    before = source_files(source(url, "b.warc.gz"), store)
    (base / "b.warc.gz").write_bytes(b"zz")
    assert source_files(source(url, "b.warc.gz"), store)[0].identity != before[0].identity


def test_the_files_of_a_remote_list(url: str, store: Store) -> None:
    files = source_files(source(url, "warc.paths.gz", max_warcs=2), store)
    assert [file.uri for file in files] == [f"{url}/deep/c.warc.gz", f"{url}/b.warc.gz"]


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        pytest.param("x.warc.gz", "there is no file", id="missing file"),
        pytest.param("empty.warc.gz", r"is empty \(0 bytes\)", id="empty file"),
        pytest.param("x.paths.gz", "cannot read the list of files", id="missing list"),
    ],
)
def test_a_remote_source_that_cannot_be_read_is_named(url: str, store: Store, uri: str, words: str) -> None:
    with pytest.raises(SourceError, match=f"source crawl: ({words}.*{uri}|.*{uri} {words})"):
        source_files(source(url, uri), store)


def test_a_server_that_is_not_there_is_named(store: Store) -> None:
    with pytest.raises(UnreachableError, match=r"source crawl: cannot reach http://127\.0\.0\.1:9/a"):
        source_files(source("http://127.0.0.1:9", "a.warc.gz"), store)


@pytest.mark.parametrize(
    ("place", "error"),
    [
        pytest.param("http://127.0.0.1:9", UnreachableError, id="no server"),
        pytest.param("{server}/503", UnreachableError, id="busy"),
        pytest.param("{server}/403", SourceError, id="forbidden"),
    ],
)
@pytest.mark.parametrize("uri", ["a.warc.gz", "x.paths.gz", "*.warc.gz"])
def test_storage_that_does_not_answer_is_told_from_a_wrong_address(
    bad_server: str, store: Store, uri: str, place: str, error: type[TokenmillError]
) -> None:
    where = place.format(server=bad_server)
    with pytest.raises(TokenmillError, match=f"source crawl: .*{re.escape(f'{where}/{uri}')}") as caught:
        source_files(source(where, uri), store)
    assert type(caught.value) is error


def test_a_takedown_list_that_does_not_answer_may_be_had_later(bad_server: str) -> None:
    with pytest.raises(UnreachableError, match=r"cannot read the takedown list .*/503/list"):
        sources.read_takedown_list(f"{bad_server}/503/list.yaml")


def test_a_dataset_is_named_by_its_revision_and_a_local_one_by_its_files(base: Path, store: Store) -> None:
    def identity(dataset: str, revision: str) -> dict:
        chosen = Source(name="texts", kind="documents", dataset=dataset, revision=revision)
        return dataset_identity(chosen, store)

    assert identity("owner/name", "1") != identity("owner/name", "2")
    before = identity(str(base), "1")
    assert before["dataset"]["deep/c.warc.gz"] == hashlib.sha256(b"ccc").hexdigest()
    (base / "deep" / "c.warc.gz").write_bytes(b"ddd")
    assert identity(str(base), "1") != before
