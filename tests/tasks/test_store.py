"""The store: what is found, what it is called, and who may touch it."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.errors import StageError, StoreError
from tasks.caching import FlockManager
from tasks.store import STALE_SECONDS, StageOutput, Store, digest_of, disk_errors, disk_problem, write_json

KEY = "0" * 64
RECIPE = {"stage": "stage", "version": 1}
FILES = {
    "documents/part-00000.txt": "kept",
    "removed/part-00000.txt": "removed",
    "clusters/c.txt": "clusters",
}


def commit(
    store: Store, files: dict[str, str], key: str = KEY, seconds: float = 1.0, read: int = 1
) -> StageOutput:
    folder = store.building_folder("stage", key)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_json(folder / "report.json", {"read": read})
    write_json(folder / "_computation.json", {"seconds": seconds, "record": "r"})
    return store.commit("stage", key, RECIPE, "label")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_committed_output_is_found_with_its_digest(store: Store) -> None:
    output = commit(store, FILES)
    assert store.find("stage", KEY, "label") == output
    assert store.path(output) == store.root / "stage" / KEY
    assert store.report(output) == {"read": 1}
    made = store.computation(output)
    assert (made["seconds"], made["record"]) == (1.0, "r")
    assert made["manifest"] == hashlib.sha256((store.path(output) / "manifest.json").read_bytes()).hexdigest()


def test_nothing_is_found_under_another_key_or_stage(store: Store) -> None:
    commit(store, FILES)
    assert store.find("stage", "1" * 64) is None
    assert store.find("other", KEY) is None


def test_a_building_folder_is_invisible_to_find(store: Store) -> None:
    folder = store.building_folder("stage", KEY)
    write_json(folder / "manifest.json", {"digest": "x", "files": []})
    assert store.find("stage", KEY) is None


def test_the_manifest_has_the_recipe_and_every_file_but_those_of_how_it_was_made(store: Store) -> None:
    folder = store.building_folder("stage", KEY) / "documents"
    folder.mkdir()
    pq.write_table(pa.table({"id": ["a", "b", "c"]}), folder / "part-00000.parquet")
    bytes_written = (folder / "part-00000.parquet").read_bytes()
    manifest = store.manifest(commit(store, {"note.txt": "hello"}))
    assert manifest["recipe"] == RECIPE
    assert manifest["files"] == [
        {
            "path": "documents/part-00000.parquet",
            "rows": 3,
            "bytes": len(bytes_written),
            "sha256": hashlib.sha256(bytes_written).hexdigest(),
        },
        {"path": "note.txt", "bytes": 5, "sha256": hashlib.sha256(b"hello").hexdigest()},
        {"path": "report.json", "bytes": 15, "sha256": hashlib.sha256(b'{\n "read": 1\n}\n').hexdigest()},
    ]


def test_the_same_content_has_the_same_manifest_in_every_store(tmp_path: Path) -> None:
    manifests = []
    for name, seconds in (("one", 1.0), ("two", 22.5)):
        store = Store(tmp_path / name)
        manifests.append((store.path(commit(store, FILES, seconds=seconds)) / "manifest.json").read_bytes())
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        pytest.param({}, True, id="nothing"),
        pytest.param({"removed/part-00000.txt": "other"}, True, id="removed"),
        pytest.param({"clusters/c.txt": "other"}, True, id="clusters"),
        pytest.param({"documents/part-00000.txt": "tekp"}, False, id="document of the same size"),
        pytest.param({"documents/part-00001.txt": "kept"}, False, id="another document"),
        pytest.param({"removed.txt": "kept"}, False, id="file beside removed"),
    ],
)
def test_the_digest_follows_from_what_was_kept_only(
    tmp_path: Path, change: dict[str, str], same: bool
) -> None:
    before = commit(Store(tmp_path / "before"), FILES)
    after = commit(Store(tmp_path / "after"), FILES | change, seconds=9.0)
    assert (before.digest == after.digest) is same


def test_the_digest_does_not_depend_on_the_key(store: Store) -> None:
    assert commit(store, FILES, KEY).digest == commit(store, FILES, "1" * 64).digest


def test_a_stage_that_made_no_files_is_refused(store: Store) -> None:
    with pytest.raises(StageError, match=r"stage stage \(label\) made no files"):
        commit(store, {"removed/part-00000.txt": "all gone"})
    assert store.find("stage", KEY) is None


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda f: (f / "documents/part-00000.txt").unlink(), id="deleted file"),
        pytest.param(lambda f: (f / "documents/part-00000.txt").write_text("kep"), id="cut file"),
        pytest.param(lambda f: (f / "removed/part-00000.txt").write_text(""), id="cut file of removed"),
        pytest.param(lambda f: (f / "manifest.json").unlink(), id="no manifest"),
        pytest.param(lambda f: os.truncate(f / "manifest.json", 40), id="cut manifest"),
        pytest.param(lambda f: (f / "manifest.json").write_text("[]"), id="manifest of another shape"),
    ],
)
def test_a_damaged_output_is_not_found(store: Store, damage) -> None:
    output = commit(store, FILES)
    damage(store.path(output))
    assert store.find("stage", KEY) is None


def test_discard_removes_both_the_committed_and_the_building_folder(store: Store) -> None:
    commit(store, FILES)
    store.building_folder("stage", KEY)
    store.discard("stage", KEY)
    assert list((store.root / "stage").iterdir()) == []


def test_write_json_leaves_the_old_file_when_the_value_cannot_be_written(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": "é", "a": 1})
    assert (tmp_path / "a.json").read_text("utf-8") == '{\n "a": 1,\n "b": "é"\n}\n'
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == {"a": 1, "b": "é"}


def test_the_digest_of_a_value_does_not_depend_on_the_order_of_its_names() -> None:
    assert digest_of({"a": 1, "b": [1, 2]}) == digest_of({"b": [1, 2], "a": 1})
    assert digest_of({"a": [1, 2]}) != digest_of({"a": [2, 1]})


HOLD_LOCK = """
import sys, time
from pathlib import Path
from tasks.store import Store
with Store(Path(sys.argv[1])).lock("stage-key") as held:
    print(held, flush=True)
    time.sleep(60)
"""


def test_a_lock_excludes_other_processes_and_vanishes_when_its_holder_is_killed(store: Store) -> None:
    command = [sys.executable, "-c", HOLD_LOCK, str(store.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"True\n"
            with store.lock("stage-key", seconds=0) as held:
                assert not held
            with store.lock("another", seconds=0) as held:
                assert held
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    with store.lock("stage-key", seconds=0) as held:
        assert held


def test_a_lock_waits_as_long_as_it_was_told(store: Store) -> None:
    with store.lock("a"):
        started = time.monotonic()
        with store.lock("a", seconds=0.3) as held:
            assert not held
        assert 0.3 <= time.monotonic() - started < 5


def test_a_waiting_lock_is_had_as_soon_as_it_is_free(store: Store) -> None:
    free = threading.Event()
    with store.lock("a"):
        waiter = threading.Thread(target=lambda: free.set() if _had(store) else None)
        waiter.start()
        assert not free.wait(0.2)
    waiter.join(5)
    assert free.is_set()


def _had(store: Store) -> bool:
    with store.lock("a") as held:
        return held


def age(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder, (then, then))


@pytest.mark.parametrize(
    ("seconds", "stays"),
    [
        pytest.param(STALE_SECONDS + 60, False, id="older than a week"),
        pytest.param(STALE_SECONDS - 60, True, id="younger than a week"),
        pytest.param(0, True, id="new"),
    ],
)
def test_sweep_removes_building_folders_that_nobody_came_back_for(
    store: Store, seconds: float, stays: bool
) -> None:
    folder = store.building_folder("stage", KEY)
    (folder / "documents").mkdir()
    age(folder, seconds)
    store.sweep("stage")
    assert folder.exists() is stays


def test_sweep_leaves_a_folder_that_somebody_is_building_in(store: Store) -> None:
    folder = store.building_folder("stage", KEY)
    age(folder, STALE_SECONDS + 60)
    builder = FlockManager(store)  # what the cached task holds while it builds
    builder.acquire_lock(f"stage/{KEY}/_prefect", "builder")
    try:
        store.sweep("stage")
        assert folder.exists()
    finally:
        builder.release_lock(f"stage/{KEY}/_prefect", "builder")
    store.sweep("stage")
    assert not folder.exists()


def test_sweep_removes_half_removed_folders_and_leaves_committed_ones(store: Store) -> None:
    output = commit(store, FILES)
    age(store.path(output), STALE_SECONDS + 60)
    (store.root / "stage" / f".{KEY}.77.doomed" / "documents").mkdir(parents=True)
    store.sweep("stage")
    assert [path.name for path in (store.root / "stage").iterdir()] == [KEY]
    assert store.find("stage", KEY, "label") == output


def test_sweep_removes_what_was_fetched_in_part_a_week_ago(store: Store) -> None:
    for name in ("old", "new"):
        (store.root / "stage" / f".{name}.77.fetching" / "documents").mkdir(parents=True)
    age(store.root / "stage" / ".old.77.fetching", STALE_SECONDS + 60)
    store.sweep("stage")
    assert [path.name for path in (store.root / "stage").iterdir()] == [".new.77.fetching"]


def test_sweep_of_a_stage_that_never_ran_does_nothing(store: Store) -> None:
    store.sweep("stage")
    assert not store.root.exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(errno.ENOSPC, "the disk is full", id="full"),
        pytest.param(errno.EDQUOT, "the disk quota is used up", id="quota"),
        pytest.param(errno.EROFS, "the disk is read-only", id="read-only"),
        pytest.param(errno.EACCES, "no permission to write", id="permission"),
    ],
)
def test_an_error_of_the_disk_says_what_and_where_and_what_to_do(number: int, words: str) -> None:
    with (
        pytest.raises(StoreError, match=f"{words}: store /data/store.*TOKENMILL_HOME"),
        disk_errors(Path("/data/store")),
    ):
        raise OSError(number, os.strerror(number))


def test_an_error_that_is_not_the_disks_stays_what_it_is() -> None:
    assert disk_problem(FileNotFoundError(errno.ENOENT, "gone"), Path("/data")) is None
    with pytest.raises(FileNotFoundError), disk_errors(Path("/data")):
        raise FileNotFoundError(errno.ENOENT, "gone")


def test_a_file_outside_the_store_that_may_not_be_read_is_not_the_stores_fault() -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/crawl/a.warc.gz")
    assert disk_problem(error, Path("/data/store")) is None
    inside = PermissionError(errno.EACCES, "Permission denied", "/data/store/stage/.key.building")
    assert "no permission to write" in (disk_problem(inside, Path("/data/store")) or "")
