"""Trace: a document's whole path, from its WARC record to the training steps that saw it."""

import base64
import difflib
import hashlib
from collections.abc import Sequence
from typing import Any

from pipeline_config.settings import Settings
from tasks.audit.exposure import seen_by, token_ranges
from tasks.audit.ledger import FIRST_STAGES, IDENTITY, Ledger, row_at, text_list
from tasks.audit.marks import marks_of
from tasks.sources import join_uri
from tasks.steps.selection import Selector
from tasks.steps.warc.ranges import read_range
from tasks.steps.warc.records import read_record

Row = dict[str, Any]
ALL = "all"  # the label of stages that take all sources
MOST_DOCUMENTS, MOST_DIFF_LINES, HTML_CHARACTERS = 20, 60, 2000
ENTRY_FIELDS = ("dump", "date", "file_path", "warc_offset", "warc_length", "payload_digest")


def trace(ledger: Ledger, selector: Selector, most: int = MOST_DOCUMENTS) -> dict[str, Any]:
    """What a selector means in a run: the number of records by fate, and the paths of the first `most`."""
    condition, parameters = selector.condition()
    fates = ledger.rows(
        "SELECT stage, fate, reason, count(*) AS records FROM "
        f"({ledger.fates('url', 'id')}) WHERE {condition} "
        "GROUP BY stage_order, stage, fate, reason ORDER BY stage_order, fate, reason",
        parameters,
    )
    read = f"SELECT count(*) AS records FROM ({ledger.read('url', 'id')}) WHERE {condition}"
    found = [
        row
        for node in ledger.stages
        if node.stage in FIRST_STAGES
        for table in ("documents", "removed")
        for row in ledger.find(node, condition, parameters, table, most)
    ]
    return {
        "run": ledger.run.id,
        "selected": {"kind": selector.kind, "value": selector.value},
        "records": ledger.rows(read, parameters)[0]["records"],
        "fates": fates,
        "documents": paths_of(ledger, found[:most]),
    }


def paths_of(ledger: Ledger, entries: Sequence[Row]) -> list[dict[str, Any]]:
    """The paths of records through the run. Each table is searched once, for all of them."""
    ids = [entry["id"] for entry in entries]
    found = {
        (node.name, table): ledger.find(node, "id IN (SELECT unnest(?))", [ids], table)
        for node in (ledger.stages if ids else ())
        for table in ("documents", "removed")
    }
    return [_path_of(ledger, entry, found) for entry in entries]


def _path_of(ledger: Ledger, entry: Row, found: dict[tuple[str, str], list[Row]]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    text: str | None = None
    last, compared = entry, None
    for node in ledger.stages:
        if node.label not in (entry["source"], ALL):
            continue
        kept = _same(found[node.name, "documents"], entry)
        lost = _same(found[node.name, "removed"], entry)
        compared = last if node.stage == "deduplication" else compared
        for row in kept[:1] or lost[:1]:
            names = ("fate",) if kept else ("fate", "reason", "value")
            fate = {name: row.get(name, "kept") for name in names}
            step = {"stage": node.stage, "source": node.label, "key": node.key} | fate
            step["change"] = _change(text, row.get("text"), node.stage)
            steps.append(step)
            text, last = row.get("text", text), row
    document = {name: entry.get(name) for name in ("id", "url", "source")}
    document["record"] = {name: entry.get(name) for name in ENTRY_FIELDS} | _source_record(ledger, entry)
    document["steps"] = steps
    document["fate"] = _fate(steps, last)
    document["cluster"] = _cluster(ledger, compared) if compared else []
    return document | _tokens(ledger, entry)


def _same(rows: Sequence[Row], entry: Row) -> list[Row]:
    """Rows of the same record: ids may repeat in hostile crawls."""
    return [row for row in rows if all(row.get(name) == entry.get(name) for name in IDENTITY)]


def _fate(steps: list[dict[str, Any]], last: Row) -> dict[str, Any]:
    end = steps[-1] if steps else {}
    split = (
        last.get("file", "").rpartition("/")[2].split("-")[0] if end.get("stage") == "document_split" else ""
    )
    return {name: end.get(name) for name in ("stage", "fate", "reason", "value")} | {"split": split or None}


def _change(before: str | None, after: str | None, stage: str) -> dict[str, Any] | None:
    """How a stage changed a text, or None where it did not."""
    if after is None or stage in FIRST_STAGES or before == after:
        return None
    if before is None:
        return {"characters": [None, len(after)], "after": after[:HTML_CHARACTERS]}
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=0)
    return {
        "characters": [len(before), len(after)],
        "diff": [line[:500] for line, _ in zip(lines, range(MOST_DIFF_LINES), strict=False)],
    }


def _cluster(ledger: Ledger, place: Row) -> list[Row]:
    """The duplicates of the document at a place among those compared, itself included, the survivor first.

    Members are known by their place (shard and row), not by their id: ids may repeat.
    """
    node = ledger.node("deduplication")
    members = ledger.files(node, "clusters")
    shards = [file for name in node.inputs for file in _documents(ledger, name)]
    if not members or place.get("file") not in shards:
        return []
    found = ledger.rows(
        f"WITH members AS (SELECT * FROM read_parquet({text_list(members)})) "
        "SELECT shard, row, id, kept, similarity FROM members WHERE cluster IN "
        "(SELECT cluster FROM members WHERE shard = ? AND row = ?) ORDER BY kept DESC, similarity DESC, id",
        [shards.index(place["file"]), place["row"]],
    )
    for member in found:
        row = row_at(shards[member.pop("shard")], member.pop("row"), ["url", "source"])
        member |= {"url": row["url"], "source": row["source"]}
    return found


def _documents(ledger: Ledger, name: str) -> list[str]:
    node = next((node for node in ledger.run.nodes if node.name == name), None)
    return ledger.files(node, "documents") if node else []


def _tokens(ledger: Ledger, entry: Row) -> dict[str, Any]:
    packing = ledger.run.last("packing")
    if packing is None:
        return {"tokens": [], "checkpoints": []}
    ranges = token_ranges(ledger, packing, [entry])
    checkpoints = seen_by(ledger.store, packing, ranges) if ranges else []
    for checkpoint in checkpoints:
        checkpoint["marks"] = marks_of(ledger.store, "training", checkpoint["key"])
    return {"tokens": ranges, "checkpoints": checkpoints}


def source_uri(ledger: Ledger, entry: Row) -> str | None:
    """Where the file of a record is read."""
    settings = Settings.model_validate(ledger.run.settings)
    source = next((source for source in settings.sources if source.name == entry["source"]), None)
    crawl = next((node for node in ledger.run.at("sample_crawl") if node.label == entry["source"]), None)
    base = str(ledger.store.path(crawl.output)) if crawl else source.base if source else ""
    return join_uri(base, entry["file_path"]) if entry.get("file_path") else None


def _source_record(ledger: Ledger, entry: Row) -> dict[str, Any]:
    """What the source holds at the record's place now: its digest, and the page before extraction."""
    uri = source_uri(ledger, entry)
    found: dict[str, Any] = {"uri": uri}
    if uri is None or entry.get("warc_length") is None:
        return found
    try:
        payload, digest = read_source_record(uri, entry["warc_offset"], entry["warc_length"])
    except Exception as error:  # the source may be gone, and that is an answer
        return found | {"readable": False, "problem": f"{type(error).__name__}: {error}"[:300]}
    algorithm, _, expected = (entry.get("payload_digest") or "").rpartition(":")
    return found | {
        "readable": True,
        "digest_agrees": digest == expected if expected and algorithm in ("", "sha1") else None,
        "html": payload[:HTML_CHARACTERS].decode("utf-8", "replace"),
    }


def read_source_record(uri: str, offset: int, length: int) -> tuple[bytes, str]:
    """The payload of the record at a place of a WARC file, and the SHA-1, in Base32, of its stored form."""
    record = read_record(read_range(uri, offset, offset + length))
    return record.payload, base64.b32encode(hashlib.sha1(record.body).digest()).decode()
