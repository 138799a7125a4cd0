"""Prefect's cache for stages: the record lies in the stage's folder, and a key is computed once at a time."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.cache_policies import CachePolicy
from prefect.context import TaskRunContext
from prefect.transactions import IsolationLevel

from tasks.store import Store, record_of, wait_for_flock

_held: dict[str, tuple[int, str]] = {}  # lock name -> (descriptor, holder); of this process


@dataclass
class StageCache(CachePolicy):
    """Keys a task by its stage and the key it is called with.

    A record whose folder is incomplete (a deleted or cut file) is removed first, so the stage runs again.
    """

    root: str = ""
    stage: str = ""

    def compute_key(
        self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **_: Any
    ) -> str:
        """`<stage>/<key>/_prefect`, relative to the store."""
        store, key = Store(Path(self.root)), inputs["key"]
        folder = store.folder(self.stage, key)
        if folder.exists() and store.find(self.stage, key) is None:
            with store.lock(record_of(self.stage, key), seconds=0) as held:
                if held and store.find(self.stage, key) is None:
                    store.discard(self.stage, key)
        return record_of(self.stage, key)


def stage_cache(store: Store, stage: str) -> StageCache:
    """The cache policy of a stage on a store."""
    return StageCache(
        root=str(store.root),
        stage=stage,
        lock_manager=FlockManager(store),
        isolation_level=IsolationLevel.SERIALIZABLE,
    )


class FlockManager:
    """Prefect's locks as `flock`s: they vanish with their process, also after kill -9.

    Prefect's own file locks stay behind when a process is killed, and block for ever.
    Implements `prefect.locking.protocol.LockManager`.
    """

    def __init__(self, store: Store):
        self.store = store

    def acquire_lock(
        self,
        key: str,
        holder: str,
        acquire_timeout: float | None = None,
        hold_timeout: float | None = None,
    ) -> bool:
        """Waits for the lock; whether it was had in time."""
        if self.is_lock_holder(key, holder):
            return True
        file = self.store.open_lock(key)
        if wait_for_flock(file, acquire_timeout):
            _held[self._name(key)] = (file, holder)
            return True
        os.close(file)
        return False

    def release_lock(self, key: str, holder: str) -> None:
        """Gives the lock back."""
        if not self.is_lock_holder(key, holder):
            raise ValueError(f"lock {key} is not held by {holder}")
        file, _ = _held.pop(self._name(key))
        os.close(file)

    def is_locked(self, key: str) -> bool:
        """Whether anybody holds the lock."""
        return self._name(key) in _held or not self.wait_for_lock(key, timeout=0)

    def is_lock_holder(self, key: str, holder: str) -> bool:
        """Whether this holder has the lock."""
        return _held.get(self._name(key), (0, None))[1] == holder

    def wait_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """Waits until nobody holds the lock."""
        with self.store.lock(key, timeout) as held:
            return held

    async def aacquire_lock(
        self,
        key: str,
        holder: str,
        acquire_timeout: float | None = None,
        hold_timeout: float | None = None,
    ) -> bool:
        """As `acquire_lock`."""
        return self.acquire_lock(key, holder, acquire_timeout, hold_timeout)

    async def await_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """As `wait_for_lock`."""
        return self.wait_for_lock(key, timeout)

    def _name(self, key: str) -> str:
        return f"{self.store.root}:{key}"
