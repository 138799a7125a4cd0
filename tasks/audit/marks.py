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
    path = store.folder(stage, key) / MARKS
    found = [path.read_bytes()] if path.is_file() else []
    if store.mirror and (shared := store.mirror.read_sidecar(stage, key, MARKS)):
        found.append(shared)
    marks: list[dict[str, Any]] = []
    for data in found:
        with contextlib.suppress(ValueError):
            marks += [mark for mark in json.loads(data) if mark not in marks]
    return marks


def add_mark(store: Store, stage: str, key: str, mark: dict[str, Any]) -> None:
    """Adds a mark to an output, once."""
    marks = marks_of(store, stage, key)
    if mark not in marks:
        path = store.folder(stage, key) / MARKS
        write_json(path, [*marks, mark])
        if store.mirror:
            store.mirror.write_sidecar(stage, key, path)
