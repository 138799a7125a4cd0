"""Prefect's locks and records, kept in the store."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.caching import FlockManager, StageCache
from tasks.store import Store, write_json

KEY = "stage/key/_prefect"

HOLD = """
import sys, time
from pathlib import Path
from tasks.caching import FlockManager
from tasks.store import Store
print(FlockManager(Store(Path(sys.argv[1]))).acquire_lock(sys.argv[2], "another process"), flush=True)
time.sleep(60)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def manager(store: Store) -> FlockManager:
    return FlockManager(store)


def test_a_lock_is_held_by_one_holder_until_it_is_released(manager: FlockManager) -> None:
    assert not manager.is_locked(KEY)
    assert manager.acquire_lock(KEY, "one")
    assert (manager.is_locked(KEY), manager.is_lock_holder(KEY, "one")) == (True, True)
    assert not manager.is_lock_holder(KEY, "two")
    assert not manager.acquire_lock(KEY, "two", acquire_timeout=0)
    manager.release_lock(KEY, "one")
    assert (manager.is_locked(KEY), manager.is_lock_holder(KEY, "one")) == (False, False)
    assert manager.acquire_lock(KEY, "two", acquire_timeout=0)
    manager.release_lock(KEY, "two")


def test_a_holder_may_acquire_its_lock_again(manager: FlockManager) -> None:
    assert manager.acquire_lock(KEY, "one")
    assert manager.acquire_lock(KEY, "one", acquire_timeout=0)
    manager.release_lock(KEY, "one")
    assert not manager.is_locked(KEY)


def test_only_the_holder_may_release(manager: FlockManager) -> None:
    with pytest.raises(ValueError, match="not held by two"):
        manager.release_lock(KEY, "two")
    manager.acquire_lock(KEY, "one")
    with pytest.raises(ValueError, match="not held by two"):
        manager.release_lock(KEY, "two")
    assert manager.is_lock_holder(KEY, "one")
    manager.release_lock(KEY, "one")


def test_locks_of_other_keys_and_other_stores_are_independent(manager: FlockManager, tmp_path: Path) -> None:
    elsewhere = FlockManager(Store(tmp_path / "elsewhere"))
    held = [(manager, KEY), (manager, "stage/other/_prefect"), (elsewhere, KEY)]
    assert [m.acquire_lock(key, "one", acquire_timeout=0) for m, key in held] == [True] * 3
    for m, key in held:
        m.release_lock(key, "one")


def test_two_managers_of_one_store_share_their_locks(manager: FlockManager, store: Store) -> None:
    manager.acquire_lock(KEY, "one")
    again = FlockManager(store)
    assert again.is_lock_holder(KEY, "one")
    again.release_lock(KEY, "one")
    assert not manager.is_locked(KEY)


def test_waiting_ends_after_the_timeout(manager: FlockManager) -> None:
    manager.acquire_lock(KEY, "one")
    started = time.monotonic()
    assert not manager.wait_for_lock(KEY, timeout=0.2)
    assert not manager.acquire_lock(KEY, "two", acquire_timeout=0.2)
    assert 0.4 <= time.monotonic() - started < 5
    manager.release_lock(KEY, "one")
    assert manager.wait_for_lock(KEY, timeout=0)


def test_a_lock_of_another_process_is_respected_until_that_process_is_killed(
    manager: FlockManager, store: Store
) -> None:
    command = [sys.executable, "-c", HOLD, str(store.root), KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"True\n"
            assert manager.is_locked(KEY)
            assert not manager.acquire_lock(KEY, "one", acquire_timeout=0.1)
            assert not manager.is_lock_holder(KEY, "one")
        finally:
            os.kill(process.pid, signal.SIGKILL)
    assert manager.acquire_lock(KEY, "one", acquire_timeout=5)
    manager.release_lock(KEY, "one")


async def _use(manager: FlockManager) -> tuple[bool, bool]:
    had = await manager.aacquire_lock(KEY, "one")
    return had, await manager.await_for_lock(KEY, timeout=0)


def test_the_asynchronous_calls_do_the_same(manager: FlockManager) -> None:
    assert asyncio.run(_use(manager)) == (True, False)
    manager.release_lock(KEY, "one")


def cache_key(store: Store, key: str = "key") -> str:
    return StageCache(root=str(store.root), stage="stage").compute_key(None, {"key": key}, {})


def commit(store: Store) -> Path:
    (store.building_folder("stage", "key") / "file.txt").write_text("text")
    output = store.commit("stage", "key", {}, "")
    write_json(store.path(output) / "_prefect", {})
    return store.path(output)


def test_the_record_lies_in_the_folder_of_the_stage_and_key(store: Store) -> None:
    assert cache_key(store) == KEY
    assert cache_key(store, "other") == "stage/other/_prefect"


def test_the_record_of_a_whole_output_stays(store: Store) -> None:
    folder = commit(store)
    cache_key(store)
    assert (folder / "_prefect").is_file()


def test_the_record_of_a_damaged_output_goes_with_it(store: Store) -> None:
    folder = commit(store)
    (folder / "file.txt").write_text("tex")
    cache_key(store)
    assert not folder.exists()


def test_a_damaged_output_that_somebody_works_on_is_left_alone(store: Store) -> None:
    folder = commit(store)
    (folder / "file.txt").write_text("tex")
    with store.lock(KEY):
        cache_key(store)
    assert (folder / "_prefect").is_file()


def test_an_output_that_was_mended_while_we_looked_is_not_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = commit(store)
    (folder / "file.txt").write_text("tex")
    lock = Store.lock

    def lock_late(self: Store, *arguments, **named):
        (folder / "file.txt").write_text("text")  # another process was faster
        return lock(self, *arguments, **named)

    monkeypatch.setattr(Store, "lock", lock_late)
    cache_key(store)
    assert folder.is_dir()
