"""What the tests of cards and reports share: hostile and harmless texts, statistics, and a small ledger."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.audit.ledger import Ledger
from tasks.lineage import Node, RunRecord
from tasks.steps.shards import DOCUMENT_SCHEMA, REMOVED_SCHEMA, TableWriter
from tasks.store import Store

Row = dict[str, Any]
HOSTILE = {
    "script": "<script>alert(1)</script>",
    "end_of_script": "</script><script>alert(1)</script><!--",
    "image": '"><img src=x onerror=alert(1)>',
    "single_quotes": "'><svg/onload=alert(1)>",
    "link": "javascript:alert(1)",
    "markdown_link": "[click](javascript:alert(1)) ![x](https://evil.example/x.png)",
    "template": "{{ 7*7 }}{% raw %}{# x #}",
    "format": "{0.__class__} {name} %s",
    "markdown": "# Title\n\n| a | b |\n|---|---|\n```\n**bold** <b>x</b>\n    code\n- list\n> quote",
    "table": "a | b || c \\| d",
    "yaml": "---\nlicense: mit\n...\n--- !!python/object/apply:os.system ['x']\n- : & * ! % @ `",
    "yaml_value": "key: value # comment",
    "entity": "&lt;script&gt;&#60;script&#62; &amp;",
    "control": "a\x00b\x08c\x1b[31md\x7f\x85e\u2028f\u202eg\ufeff",
    "surrogate": "a\ud800b\udfffc",
    "long": "<b>" + "x" * 100_000,
    "empty": "",
    "spaces": "  \n\t ",
}
NOTHING: Row = {
    "totals": {"documents": 0, "text_bytes": 0},
    "read": 0,
    "tokens": None,
    **{name: [] for name in ("splits", "stages", "reasons", "lengths", "languages", "scores", "domains")},
    **{name: [] for name in ("clusters", "kept_samples", "removed_samples", "sources")},
}


def statistics_with(text: str) -> Row:
    """Statistics of a small corpus in which every text from outside is `text`."""
    counts = {"read": 10, "kept": 7, "removed": {text: 2}, "failed": {text: 1}}
    end = {"read": 7, "kept": 7, "removed": {}, "failed": {}}
    sample = {"source": text, "url": text, "id": text, "excerpt": text}
    lost = sample | {"stage": "document_import", "fate": "removed", "reason": text, "value": text}
    return {
        "totals": {"documents": 7, "text_bytes": 700},
        "read": 10,
        "splits": [{"split": "train", "source": text, "documents": 7, "text_bytes": 700}],
        "stages": [
            {"stage": "document_import", "source": text, "name": "document_import/a", "inputs": ()} | counts,
            {"stage": "document_split", "source": "all", "name": "s", "inputs": ("document_import/a",)} | end,
        ],
        "reasons": [
            {"stage": "document_import", "fate": "removed", "reason": text, "records": 2},
            {"stage": "document_import", "fate": "failed", "reason": text, "records": 1},
        ],
        "lengths": [{"bin": 1.5, "documents": 7}],
        "languages": [{"language": text, "documents": 7}],
        "scores": [{"score": 0.95, "documents": 7}],
        "domains": [{"domain": text, "documents": 7, "text_bytes": 700}],
        "clusters": [{"size": 2, "clusters": 1, "removed": 1}],
        "tokens": {
            "vocabulary_size": 300, "token_bytes": 2, "tokenizer_digest": "d" * 64, "documents": 7,
            "tokens": 100, "median_tokens": 12.5, "most_tokens": 40, "by_source": {text: 107},
        },
        "kept_samples": [sample],
        "removed_samples": [lost, lost | {"url": None}],
        "sources": [
            dict.fromkeys(("name", "kind", "dump", "dataset", "revision", "licence"), text)
            | {"weight": 1.0, "share_of_training_tokens": 1.0, "documents": 7, "text_bytes": 700}
            | {"content": [], "takedowns": [{"takedown": "d" * 64, "date": "2026-11-30", "reason": text}]}
        ],
    }  # fmt: skip


def facts_with(text: str) -> Row:
    """Facts of a corpus; its name follows a pattern, its settings hold anything."""
    settings = {"sources.a.licence": text, "sources.a.uris": [text], text: 1}
    return {
        "name": "a-corpus", "digest": "e" * 64, "languages": [text], "settings": settings,
        "versions": {"document_import.pyarrow": "24.0.0", "text": text},
    }  # fmt: skip


@pytest.fixture(scope="module", params=HOSTILE.values(), ids=HOSTILE.keys())
def hostile(request: pytest.FixtureRequest) -> SimpleNamespace:
    """A hostile `text`, and `statistics` and `facts` that are full of it, for reading only."""
    text = request.param
    return SimpleNamespace(text=text, statistics=statistics_with(text), facts=facts_with(text))


@pytest.fixture
def harmless() -> SimpleNamespace:
    """The same with a harmless text."""
    return SimpleNamespace(text="word", statistics=statistics_with("word"), facts=facts_with("word"))


@pytest.fixture
def nothing() -> SimpleNamespace:
    """Statistics of a run that read nothing."""
    return SimpleNamespace(statistics=copy.deepcopy(NOTHING), facts=facts_with("word"))


@pytest.fixture
def tiny_ledger(tiny_run: SimpleNamespace) -> Ledger:
    """The ledger of the tiny run."""
    return Ledger(tiny_run.record, Store(tiny_run.home / "store"))


@pytest.fixture
def small_ledger(tmp_path: Path) -> Callable[[list[Row], list[Row]], Ledger]:
    """Writes a run of import and split with these documents and these records that import removed."""
    store = Store(tmp_path / "store")

    def write(documents: list[Row], lost: list[Row]) -> Ledger:
        books = {"removed": {row["reason"]: 1 for row in lost}, "failed": {}}
        read = len(documents) + len(lost)
        _write(store, "document_import", "part", documents, lost, books | {"read": read})
        _write(store, "document_split", "train", documents, [], {"removed": {}, "failed": {}, "read": read})
        nodes = [Node(stage="document_import", label="s", key="k", digest="a" * 64)]
        nodes += [
            Node(stage="document_split", label="all", key="k", digest="b" * 64, inputs=("document_import/k",))
        ]
        settings = {"name": "small", "sources": [{"name": "s", "kind": "documents", "uris": ["x.jsonl"]}]}
        return Ledger(RunRecord(id="r", name="small", started="", settings=settings, nodes=nodes), store)

    return write


def _write(store: Store, stage: str, shard: str, documents: list[Row], lost: list[Row], report: Row) -> None:
    """A stage's output, as far as a ledger reads it."""
    folder = store.folder(stage, "k")
    for table, name, schema, rows in (
        ("documents", shard, DOCUMENT_SCHEMA, documents),
        ("removed", "part", REMOVED_SCHEMA, lost),
    ):
        writer = TableWriter(folder / table / f"{name}-00000.parquet", schema)
        for row in rows:
            writer.add({"source": "s"} | row)
        writer.close()
    (folder / "report.json").write_text(json.dumps(report | {"kept": len(documents)}))
    inputs = [{"path": "x.jsonl", "content": "c" * 64}, {"takedown": "t" * 64, "date": "d", "reason": "r"}]
    (folder / "manifest.json").write_text(json.dumps({"recipe": {"inputs": inputs}}))
