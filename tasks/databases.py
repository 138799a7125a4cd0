"""SQLite databases that appear whole: a process that is killed while it creates one leaves nothing behind."""

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tasks.store import wait_for_flock


def create_once(path: Path, create: Callable[[Path], None]) -> None:
    """Creates a database, unless it is there.

    Migrations of SQLite tables are no transaction, so they are done on another file, under a lock, and the
    finished database is copied and renamed into place.

    Args:
        create: makes the database in the file that it is given; it may leave connections open.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        wait_for_flock(lock, seconds=None)
        if path.exists():
            return
        for leftover in path.parent.glob(f".{path.name}.new*"):  # of creators that were killed
            leftover.unlink()
        draft = path.with_name(f".{path.name}.new.{os.getpid()}")
        create(draft)
        _publish(draft, path)
    finally:
        os.close(lock)


def _publish(draft: Path, path: Path) -> None:
    finished = draft.with_name(f"{draft.name}.finished")
    with (
        contextlib.closing(sqlite3.connect(draft)) as source,
        contextlib.closing(sqlite3.connect(finished)) as target,
    ):
        source.backup(target)
    os.replace(finished, path)
    for leftover in path.parent.glob(f"{draft.name}*"):
        leftover.unlink()
