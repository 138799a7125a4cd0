"""Marks on outputs: superseded corpora, checkpoints trained on documents that had to go.

<store>/<stage>/<key>/_marks.json    a list, the oldest first; no part of the output
"""

import contextlib
import json
from typing import Any

from tasks.store import Store, write_json

MARKS = "_marks.json"


def marks_of(store: Store, stage: str, key: str) -> list[dict[str, Any]]:
    """The marks of an output, those that other machines made, too."""
    here, shared = _marks_here(store, stage, key), _marks_shared(store, stage, key)
    return [*here, *(mark for mark in shared if mark not in here)]


def add_mark(store: Store, stage: str, key: str, mark: dict[str, Any]) -> None:
    """Adds a mark to an output, once, here and for other machines."""
    path = store.folder(stage, key) / MARKS
    marks = marks_of(store, stage, key)
    marks += [] if mark in marks else [mark]
    if marks != _marks_here(store, stage, key):
        write_json(path, marks)
    if store.mirror and mark not in _marks_shared(store, stage, key):
        store.mirror.write_sidecar(stage, key, path)


def _marks_here(store: Store, stage: str, key: str) -> list[dict[str, Any]]:
    path = store.folder(stage, key) / MARKS
    return _parsed(path.read_bytes()) if path.is_file() else []


def _marks_shared(store: Store, stage: str, key: str) -> list[dict[str, Any]]:
    return _parsed(store.mirror.read_sidecar(stage, key, MARKS)) if store.mirror else []


def _parsed(data: bytes | None) -> list[dict[str, Any]]:
    with contextlib.suppress(ValueError):
        return json.loads(data or b"[]")
    return []
