"""Takedown, the parts that need no pipeline: marks, lists, certificate, snippets."""

import html
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.audit.marks import marks_of
from tasks.lineage import Node, RunRecord
from tasks.steps.selection import Selector
from tasks.steps.takedown import TakedownList, parse_takedown_list
from tasks.store import Store
from tasks.takedown.certificate import certificate_page, certify
from tasks.takedown.proof import SHORTEST_TEXT, SNIPPET_CHARACTERS, snippets
from tasks.takedown.request import Request, settings_without

ODD = [
    "a'b\"c",
    "<img src=x onerror=alert(1)>",
    "../../etc/passwd",
    "a|b\nc",
    "[x](javascript:1)",
    "2026-01-01",
]
SOURCES = [{"name": name, "kind": "documents", "uris": ["x.jsonl"]} for name in ("a", "b", "c")]


def run_of(identity: str, **digests: str) -> RunRecord:
    """A run with an output for each stage, under a key of its own."""
    nodes = [Node(stage=s, label="all", key=f"{identity}-{s}", digest=d) for s, d in digests.items()]
    return RunRecord(
        id=identity, name="r", started="", settings={"name": "r", "sources": SOURCES}, nodes=nodes
    )


def held(run: RunRecord) -> list[dict[str, Any]]:
    """What `holders` says of a run's outputs."""
    return [
        {"stage": n.stage, "key": n.key, "digest": n.digest, "what": "holds documents"} for n in run.nodes
    ]


@pytest.fixture
def request_of(home: Path) -> Any:
    """A request for a list on an old run, with records as (source, id, why)."""

    def make(old: RunRecord, entries: list[tuple[str, str]], *records: tuple[str, str, str]) -> Request:
        asked = TakedownList("d" * 64, "r", "2026-11-30", tuple(Selector(*entry) for entry in entries))
        rows = [{"source": s, "id": i, "url": None, "why": w} for s, i, w in records]
        ledger: Any = SimpleNamespace(run=old, store=Store(home / "store"))
        return Request(asked, "list.yaml", ledger, rows)

    return make


@pytest.fixture
def certified(request_of: Any, home: Path) -> SimpleNamespace:
    """A takedown after which the tokenizer is the same, byte for byte, under another key."""
    old = run_of("old", document_split="1" * 64, bpe_training="2" * 64, packing="3" * 64, training="4" * 64)
    new = run_of("new", document_split="5" * 64, bpe_training="2" * 64, packing="6" * 64)
    calls: list[Any] = []
    records = SimpleNamespace(
        mark=lambda *a: calls.append(a), log_files=lambda files: calls.append(files), tag=calls.append
    )
    request = request_of(old, [("id", value) for value in ODD])
    request.folder.mkdir(parents=True)
    for node in [*old.nodes, *new.nodes]:
        (home / "store" / node.stage / node.key).mkdir(parents=True)
    run: Any = SimpleNamespace(record=new, records=records, results=[])
    certificate = certify(request, run, held(old) + held(new), 1)
    return SimpleNamespace(old=old, new=new, calls=calls, request=request, certificate=certificate)


def test_only_outputs_that_the_new_run_does_not_have_are_superseded(certified: SimpleNamespace):
    store = certified.request.ledger.store
    marked = {n.name for n in [*certified.old.nodes, *certified.new.nodes] if marks_of(store, n.stage, n.key)}
    assert marked == {"document_split/old-document_split", "packing/old-packing", "training/old-training"}
    tagged = {call[0]: call[1] for call in certified.calls if isinstance(call, tuple)}
    assert tagged.keys() == {"1" * 64, "3" * 64, "4" * 64}
    assert all(tags["superseded_by"] == "5" * 64 for tags in tagged.values())


def test_marking_twice_marks_once(certified: SimpleNamespace):
    run: Any = SimpleNamespace(
        record=certified.new,
        results=[],
        records=SimpleNamespace(mark=print, log_files=print, tag=print),
    )
    certify(certified.request, run, held(certified.old), 1)
    assert len(marks_of(certified.request.ledger.store, "packing", "old-packing")) == 1


def test_the_certificate_is_on_disk_as_it_is_returned(certified: SimpleNamespace):
    folder = certified.request.folder
    assert json.loads((folder / "certificate.json").read_text("utf-8")) == certified.certificate
    assert (folder / "certificate.md").read_text("utf-8") == certificate_page(certified.certificate)
    [files] = [call for call in certified.calls if isinstance(call, dict) and "takedown" not in call]
    assert files.keys() == {"takedown/certificate.json", "takedown/certificate.md"}


def test_odd_entries_are_text_in_the_certificate(certified: SimpleNamespace):
    page = certificate_page(certified.certificate)
    assert "<" not in page
    assert "](" not in page
    assert [entry["id"] for entry in certified.certificate["asked"]["entries"]] == ODD
    table = page.split("| entry | value | records |\n|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    counts = [entry["records"] for entry in certified.certificate["asked"]["entries"]]
    expected = [f"| id | {v} | {n} |".replace("\n", " ⏎ ") for v, n in zip(ODD, counts, strict=True)]
    assert [html.unescape(line) for line in table] == expected
    assert {path.name for path in certified.request.folder.parent.rglob("*") if path.is_file()} == {
        "certificate.json", "certificate.md"
    }  # fmt: skip


def test_each_source_concerned_gets_the_ids_of_its_own_further_records(request_of: Any, home: Path):
    records = [("a", "1", "asked for"), ("a", "2", "near-duplicate"), ("b", ODD[0], "found by the proof")]
    request = request_of(run_of("old"), [("domain", "x.example")], *records)
    taken = {source.name: source.takedown for source in settings_without(request).sources}
    assert taken.pop("c") == ()
    entries = {}
    for name, [path] in taken.items():
        found = parse_takedown_list(Path(path).read_bytes(), path)
        assert (found.reason, found.date) == ("r", "2026-11-30")
        entries[name] = [(s.kind, s.value) for s in found.selectors]
    asked = ("domain", "x.example")
    assert entries == {"a": [asked, ("id", "2")], "b": [asked, ("id", ODD[0])]}


def test_every_odd_entry_survives_the_list_that_is_written(request_of: Any):
    request = request_of(run_of("old"), [("id", value) for value in ODD], ("a", ODD[0], "asked for"))
    [path] = settings_without(request).sources[0].takedown
    found = parse_takedown_list(Path(path).read_bytes(), path)
    assert found.selectors == request.asked.selectors


def test_lists_that_a_source_has_already_stay(request_of: Any):
    old = run_of("old")
    old.settings["sources"] = [SOURCES[0] | {"takedown": ["earlier.yaml"]}]
    request = request_of(old, [("id", "1")], ("a", "1", "asked for"))
    [source] = settings_without(request).sources
    assert (len(source.takedown), source.takedown[0]) == (2, "earlier.yaml")


@pytest.mark.parametrize(
    ("length", "count"),
    [(0, 0), (SHORTEST_TEXT - 1, 0), (SHORTEST_TEXT, 1), (SNIPPET_CHARACTERS, 1), (300, 3), (10_000, 3)],
)
def test_snippets_are_beginning_middle_and_end(length: int, count: int):
    text = "".join(chr(0x4E00 + n) for n in range(length))
    found = snippets(text)
    assert len(found) == count
    assert all(part in text and len(part) <= SNIPPET_CHARACTERS for part in found)
    if count:
        assert (found[0][0], found[-1][-1]) == (text[0], text[-1])
