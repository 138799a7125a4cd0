"""Marks on outputs: superseded corpora, checkpoints trained on documents that had to go.

<store>/<stage>/<key>/_marks.json    a list, the oldest first; no part of the output
"""

import json
from typing import Any

from tasks.store import Store, write_json

MARKS = "_marks.json"


def marks_of(store: Store, stage: str, key: str) -> list[dict[str, Any]]:
    """The marks of an output."""
    try:
        return json.loads((store.folder(stage, key) / MARKS).read_text("utf-8"))
    except (OSError, ValueError):
        return []


def add_mark(store: Store, stage: str, key: str, mark: dict[str, Any]) -> None:
    """Adds a mark to an output, once."""
    marks = marks_of(store, stage, key)
    if mark not in marks:
        write_json(store.folder(stage, key) / MARKS, [*marks, mark])
