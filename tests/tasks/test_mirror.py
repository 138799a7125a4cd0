"""The store's copy that machines share: whole or not there, checked, and clear when it is away."""

import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import boto3
import pytest
import requests
from fsspec.implementations.local import LocalFileSystem
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from pipeline_config.errors import StoreError, TokenmillError, UnreachableError
from tasks.audit.marks import add_mark, marks_of
from tasks.lineage import RunRecord, all_runs, runs_folder
from tasks.mirror import MANIFEST, Mirror
from tasks.store import StageOutput, Store, open_store, write_json

KEY, OTHER = "0" * 64, "1" * 64
FILES = {
    "documents/part-00000.txt": "kept",
    "removed/part-00000.txt": "removed",
    "report.json": '{"read": 2}',
}
COPIED = len(FILES) + 2  # and the computation, and the manifest
RECORD = {"id": "20260101T000000-1a2b3c4d", "name": "tiny", "started": "2026"}
MARK = {"what": "superseded", "takedown": "t"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an object store with the S3 API, and one bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address where nothing is yet."""
    if request.param == "s3":
        request.getfixturevalue("s3")
    places = {
        "file": f"file://{tmp_path}/mirror",
        "memory": f"memory://{uuid4()}",
        "s3": f"s3://bucket/{uuid4()}",
    }
    return places[request.param]


def commit(store: Store, key: str = KEY, files: dict[str, str] = FILES) -> StageOutput:
    folder = store.building_folder("packing", key)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_json(folder / "_computation.json", {"seconds": 1.5})
    return store.commit("packing", key, {"stage": "packing"}, "label")


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str, str], Store]:
    """A store on a disk of its own, with a mirror."""
    return lambda name, url: Store(tmp_path / name / "store", Mirror(url))


Machine = Callable[[str, str], Store]


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_what_one_machine_made_another_finds_byte_for_byte(machine: Machine, url: str) -> None:
    here, there = machine("here", url), machine("there", url)
    output = commit(here)
    assert there.find("packing", KEY) is None
    here.share(output)
    assert there.mirror.holds("packing", KEY)
    assert there.find("packing", KEY, "label") == output
    assert content(there.path(output)) == content(here.path(output))
    assert there.computation(output)["seconds"] == 1.5
    assert there.mirror.keys("packing") == there.mirror.keys() == [("packing", KEY)]
    assert [path.name for path in there.path(output).parent.iterdir()] == [KEY]


def test_an_output_that_is_there_is_not_copied_again(machine: Machine, url: str) -> None:
    here = machine("here", url)
    output = commit(here)
    here.share(output)
    (here.path(output) / "documents" / "part-00000.txt").write_text("tampered")
    here.share(output)
    assert machine("there", url).mirror.fetch("packing", KEY, here.root / "copy")
    assert (here.root / "copy" / "documents" / "part-00000.txt").read_text() == "kept"


def test_all_outputs_are_listed_whoever_made_them(machine: Machine, url: str) -> None:
    here, there = machine("here", url), machine("there", url)
    here.share(commit(here))
    commit(there, OTHER)
    assert [folder.name for folder in there.folders("packing")] == [KEY, OTHER]
    assert [folder.name for folder in there.folders()] == [KEY, OTHER]
    assert there.folders("training") == []


class Faulty(LocalFileSystem):
    """A folder whose copying is interrupted, in the middle of a file, after so many files."""

    cachable = False

    def __init__(self, files: int):
        super().__init__(auto_mkdir=True)
        self.left = files

    def _copy(self, source: str, target: str, copy: Callable[..., None]) -> None:
        if self.left == 0:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(target).write_bytes(Path(source).read_bytes()[:-1])
            raise KeyboardInterrupt
        self.left -= 1
        copy(source, target)

    def put_file(self, path1: str, path2: str, **_: Any) -> None:
        self._copy(path1, path2, super().put_file)

    def get_file(self, path1: str, path2: str, **_: Any) -> None:
        self._copy(path1, path2, super().get_file)


def interrupted_after(files: int, folder: Path) -> Mirror:
    mirror = Mirror(f"file://{folder}")
    mirror._found = Faulty(files), str(folder)
    return mirror


@pytest.mark.parametrize("files", range(COPIED))
def test_an_interrupted_publication_leaves_nothing_that_is_taken_for_whole(
    machine: Machine, tmp_path: Path, files: int
) -> None:
    url = f"file://{tmp_path}/mirror"
    here, there = machine("here", url), machine("there", url)
    output = commit(here)
    with pytest.raises(KeyboardInterrupt):
        interrupted_after(files, tmp_path / "mirror").publish("packing", KEY, here.path(output))
    assert not there.mirror.holds("packing", KEY)
    assert there.find("packing", KEY) is None
    assert there.folders() == []
    here.share(output)
    assert there.find("packing", KEY, "label") == output


@pytest.mark.parametrize("files", range(COPIED - 1))
def test_an_interrupted_fetch_leaves_nothing(machine: Machine, tmp_path: Path, files: int) -> None:
    url = f"file://{tmp_path}/mirror"
    here, there = machine("here", url), machine("there", url)
    output = commit(here)
    here.share(output)
    there.mirror = interrupted_after(files, tmp_path / "mirror")
    with pytest.raises(KeyboardInterrupt):
        there.find("packing", KEY)
    assert list((there.root / "packing").iterdir()) == []
    there.mirror = Mirror(url)
    assert there.find("packing", KEY, "label") == output


@pytest.mark.parametrize("url", ["file", "s3"], indirect=True)  # fsspec's memory is not for threads
def test_several_may_fetch_the_same_output_at_once(machine: Machine, url: str) -> None:
    here, there = machine("here", url), machine("there", url)
    output = commit(here)
    here.share(output)
    barrier, found = threading.Barrier(4), []

    def fetch() -> None:
        store = Store(there.root, Mirror(url))
        barrier.wait()
        found.append(store.find("packing", KEY, "label"))

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [output] * 4
    assert [path.name for path in (there.root / "packing").iterdir()] == [KEY]


def test_one_that_is_overtaken_while_it_fetches_takes_what_is_there(machine: Machine, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/mirror"
    here, there = machine("here", url), machine("there", url)
    output = commit(here)
    here.share(output)

    class Slow(LocalFileSystem):
        cachable = False

        def glob(self, path: str, **_: Any) -> list[str]:
            Mirror(url).fetch("packing", KEY, there.folder("packing", KEY))
            return super().glob(path)

    mirror = Mirror(url)
    mirror._found = Slow(), str(tmp_path / "mirror")
    assert mirror.fetch("packing", KEY, there.folder("packing", KEY))
    assert content(there.path(output)) == content(here.path(output))
    assert [path.name for path in (there.root / "packing").iterdir()] == [KEY]


def damage(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Changes the manifest of an output."""

    def apply(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        change(manifest["files"][0])
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return apply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            lambda folder: (folder / "documents/part-00000.txt").write_text("kepT"),
            f"packing/{KEY}/documents/part-00000.txt is damaged: its SHA-256 is .*Remove that folder there",
            id="other bytes of the same length",
        ),
        pytest.param(
            lambda folder: (folder / "documents/part-00000.txt").unlink(), "FileNotFoundError", id="lost file"
        ),
        pytest.param(
            damage(lambda file: file.update(path="../../../stolen")),
            "'../../../stolen', outside",
            id="upwards",
        ),
        pytest.param(
            damage(lambda file: file.update(path="/tmp/tokenmill-stolen")), "outside", id="absolute path"
        ),
        pytest.param(
            lambda folder: (folder / MANIFEST).write_text("{"), "JSONDecodeError", id="cut manifest"
        ),
    ],
)
def test_what_is_damaged_in_the_mirror_is_an_error_and_does_not_appear_here(
    machine: Machine, tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    url = f"file://{tmp_path}/mirror"
    here, there = machine("here", url), machine("there", url)
    here.share(commit(here))
    change(tmp_path / "mirror" / "store" / "packing" / KEY)
    with pytest.raises(StoreError, match=words):
        there.find("packing", KEY)
    assert content(there.root) == {}
    assert not (tmp_path / "stolen").exists()


def test_names_in_the_mirror_that_are_none_of_ours_are_not_fetched(machine: Machine, tmp_path: Path) -> None:
    here = machine("here", f"file://{tmp_path}/mirror")
    here.share(commit(here))
    stage = tmp_path / "mirror" / "store" / "packing"
    for name in (f".{KEY}.building", "a b", ".."):
        shutil.copytree(stage / KEY, stage / "x" / ".." / name, dirs_exist_ok=True)
    assert here.mirror.keys() == [("packing", KEY)]


def test_a_damaged_copy_here_is_healed_from_the_mirror(machine: Machine, url: str) -> None:
    here = machine("here", url)
    output = commit(here)
    here.share(output)
    (here.path(output) / "documents" / "part-00000.txt").write_text("")
    assert here.find("packing", KEY) is None
    here.discard("packing", KEY)
    assert here.find("packing", KEY, "label") == output


def test_marks_are_shared_by_all_machines(machine: Machine, url: str) -> None:
    here, there = machine("here", url), machine("there", url)
    output = commit(here)
    here.share(output)
    there.path(output)
    add_mark(here, "packing", KEY, MARK)
    assert marks_of(there, "packing", KEY) == [MARK]
    add_mark(there, "packing", KEY, MARK | {"what": "other"})
    for store in (here, there, machine("third", url)):
        assert marks_of(store, "packing", KEY) == [MARK, MARK | {"what": "other"}]


def test_a_mark_that_could_not_be_shared_is_shared_when_it_is_added_again(machine: Machine, url: str) -> None:
    here, there = machine("here", url), machine("there", url)
    here.share(commit(here))
    add_mark(Store(here.root), "packing", KEY, MARK)  # as if the object store did not answer
    assert marks_of(there, "packing", KEY) == []
    add_mark(here, "packing", KEY, MARK)
    assert marks_of(there, "packing", KEY) == marks_of(here, "packing", KEY) == [MARK]


@pytest.fixture
def on_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> Callable[[str], None]:
    """Goes to a machine whose data folder has a mirror."""
    monkeypatch.setenv("TOKENMILL_STORE", url)

    def go(name: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / name))

    return go


def test_records_of_runs_are_shared_as_they_grow(on_machine: Callable[[str], None]) -> None:
    on_machine("here")
    assert all_runs() == []
    run = RunRecord(**RECORD)
    run.save()
    on_machine("there")
    assert all_runs() == [run]
    on_machine("here")
    run.status, run.finished = "finished", "2027"
    run.save()
    on_machine("there")
    assert all_runs() == [run]


def test_the_end_of_a_run_that_could_not_be_shared_is_not_forgotten(
    on_machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_machine("here")
    run = RunRecord(**RECORD)
    run.save()
    run.status = "finished"
    with monkeypatch.context() as patch:
        patch.delenv("TOKENMILL_STORE")  # as if it did not answer
        run.save()
    assert all_runs() == [run]
    assert json.loads((runs_folder() / f"{run.id}.json").read_text())["status"] == "finished"


@pytest.fixture
def refusal(s3: str, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What makes an object store refuse, or not answer."""

    def refuse_the_credentials() -> None:
        requests.post(f"{s3}/moto-api/reset-auth", data=b"0", timeout=10).raise_for_status()

    def go_away() -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    S3FileSystem.clear_instance_cache()  # they keep the endpoint
    yield SimpleNamespace(
        refuse_the_credentials=refuse_the_credentials, go_away=go_away, nothing=lambda: None
    )
    requests.post(f"{s3}/moto-api/reset-auth", data=b"inf", timeout=10)
    S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize(
    ("fault", "url", "error", "words"),
    [
        pytest.param(
            "go_away", "s3://bucket/x", UnreachableError, "s3://bucket/x does not answer", id="away"
        ),
        pytest.param(
            "refuse_the_credentials", "s3://bucket/y", StoreError, "refuses: .*credentials", id="credentials"
        ),
        pytest.param("nothing", "s3://no-such-bucket/x", StoreError, "refuses: .*bucket", id="bucket"),
        pytest.param("nothing", "s4://bucket/x", StoreError, "refuses: .*s4", id="protocol"),
        pytest.param("nothing", "file:///proc/nowhere", StoreError, "refuses: .*/proc/nowhere", id="folder"),
    ],
)
def test_an_object_store_that_does_not_take_an_output_is_named(
    machine: Machine, refusal: SimpleNamespace, fault: str, url: str, error: type[TokenmillError], words: str
) -> None:
    store = machine("here", url)
    output = commit(Store(store.root))
    getattr(refusal, fault)()
    with pytest.raises(TokenmillError, match=words) as caught:
        store.share(output)
    assert type(caught.value) is error


def test_the_store_of_the_data_folder_has_the_mirror_that_the_environment_names(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKENMILL_STORE", raising=False)
    assert (open_store().mirror, open_store().address) == (None, str(home / "store"))
    monkeypatch.setenv("TOKENMILL_STORE", "s3://bucket/x/")
    assert open_store().address == "s3://bucket/x"
