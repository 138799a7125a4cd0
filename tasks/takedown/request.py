"""What a takedown means in a run, and every output that holds it or was made from it."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline_config.environment import home
from pipeline_config.errors import AuditError
from pipeline_config.settings import STAGES, Settings
from tasks.audit.exposure import seen_by, token_ranges
from tasks.audit.ledger import Ledger, text_list
from tasks.lineage import Node, find_run
from tasks.sources import read_takedown_list
from tasks.steps.selection import any_of
from tasks.steps.takedown import REASON, TakedownList, parse_takedown_list
from tasks.store import MANIFEST, Store, open_store

Row = dict[str, Any]
ASKED_FOR = "asked for"
CORPUS_STAGES = ("document_split", "corpus_publication", "bpe_training", "packing")
MODEL_STAGES = ("training", "text_generation", "model_publication")


@dataclass
class Request:
    """A takedown: the list, the run whose corpus it concerns, and the records that it means there."""

    asked: TakedownList
    uri: str
    ledger: Ledger
    affected: list[Row]
    widened: list[Row] = field(default_factory=list)
    everywhere: list[Row] = field(default_factory=list)
    lists: dict[str, Path] = field(default_factory=dict)

    @property
    def records(self) -> list[Row]:
        """Records that must go: those asked for, their near-duplicates, and what the proof found besides."""
        return self.affected + self.widened

    @property
    def keys(self) -> list[list[str]]:
        """The sources and the ids of the records, as the parameters of `AFFECTED`."""
        return keys_of(self.records)

    @property
    def folder(self) -> Path:
        """Where the list and the certificate lie."""
        return home() / "takedowns" / self.asked.digest[:16]


AFFECTED = "(source, id) IN (SELECT unnest(?), unnest(?))"


def keys_of(rows: list[Row]) -> list[list[str]]:
    """The sources and the ids of records, as the parameters of `AFFECTED`."""
    return [[row["source"] for row in rows], [row["id"] for row in rows]]


def open_takedown(uri: str, run: str) -> Request:
    """Finds the records that a list means in a run, with their near-duplicates.

    Raises:
        AuditError: there is no such run, or no record of it is meant.
    """
    asked = read_takedown_list(uri)
    ledger = Ledger(find_run(run), open_store())
    condition, parameters = any_of(asked.selectors)
    columns = ("id", "source", "url")
    meant = ledger.rows(
        f"SELECT DISTINCT id, source, url, '{ASKED_FOR}' AS why FROM ({ledger.fates(*columns)}) "
        f"WHERE {condition} AND reason IS DISTINCT FROM ? ORDER BY source, id",
        [*parameters, REASON],
    )
    if not meant:
        raise AuditError(
            f"the takedown list {uri} means no record of run {ledger.run.id} ({ledger.run.name}): there is "
            "nothing to do. Its entries: " + ", ".join(f"{s.kind} {s.value}" for s in asked.selectors[:5])
        )
    return Request(asked, uri, ledger, meant + _near_duplicates(ledger, meant))


def _near_duplicates(ledger: Ledger, meant: list[Row]) -> list[Row]:
    """Other members of the clusters that hold an affected document."""
    node = next((node for node in ledger.stages if node.stage == "deduplication"), None)
    files = sorted((ledger.store.path(node.output) / "clusters").glob("*.parquet")) if node else []
    if node is None or not files:
        return []
    columns = ("id", "source", "url", "filename")
    return ledger.rows(
        "WITH documents AS (SELECT id, source, url, "
        "split_part(parse_filename(filename, true), '-', 2)::BIGINT AS shard "
        f"FROM ({ledger.kept(node, *columns)} UNION ALL {ledger.lost(node, *columns)})), "
        "members AS (SELECT * FROM documents JOIN read_parquet(?) USING (shard, id)), "
        f"touched AS (SELECT cluster FROM members WHERE {AFFECTED}) "
        "SELECT DISTINCT id, source, url, 'near-duplicate' AS why FROM members "
        f"WHERE cluster IN (FROM touched) AND NOT {AFFECTED} ORDER BY source, id",
        [[str(path) for path in files], *keys_of(meant), *keys_of(meant)],
    )


def settings_without(request: Request) -> Settings:
    """The settings of the run; the sources concerned name a list of everything that must go."""
    request.folder.mkdir(parents=True, exist_ok=True)
    settings = Settings.model_validate(request.ledger.run.settings)
    request.lists = {
        source.name: _write_list(request, source.name)
        for source in settings.sources
        if any(row["source"] == source.name for row in request.records)
    }
    sources = tuple(
        s.model_copy(update={"takedown": (*s.takedown, str(request.lists[s.name]))})
        if s.name in request.lists
        else s
        for s in settings.sources
    )
    execution = settings.execution.model_copy(update={"until": STAGES[-1], "from_stage": None})
    return settings.model_copy(update={"sources": sources, "execution": execution})


def _write_list(request: Request, source: str) -> Path:
    """The list with the ids of the further records of a source."""
    more = {row["id"] for row in request.records if row["why"] != ASKED_FOR and row["source"] == source}
    entries = [{s.kind: s.value} for s in request.asked.selectors] + [{"id": name} for name in sorted(more)]
    values = {"reason": request.asked.reason, "date": request.asked.date, "entries": entries}
    data = yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode()
    parse_takedown_list(data, "made here")
    path = request.folder / f"list-{hashlib.sha256(data).hexdigest()[:16]}.yaml"
    path.write_bytes(data)
    return path


def holders(request: Request) -> list[Row]:
    """Every output in the store that holds an affected document or an excerpt, or was made from such."""
    store = request.ledger.store
    manifests = [folder / MANIFEST for folder in store.folders()]
    request.everywhere = _everywhere(request, [path.parent for path in manifests])
    held = [row for path in manifests for row in _holding(request, path)]
    for row in list(held):
        if row["stage"] == "document_split":
            held += _made_from(store, "bpe_training", row["digest"], "learned from such documents")
        if row["stage"] == "packing":
            held += list(_trained_on(request, row))
    known = {(row["stage"], row["key"]) for row in held}
    reports = [
        node for node in request.ledger.run.at("corpus_publication") if (node.stage, node.key) not in known
    ]
    what = "its report may show excerpts"
    return held + [
        n.model_dump(include={"stage", "key", "digest"}) | {"documents": None, "what": what} for n in reports
    ]


def _everywhere(request: Request, folders: list[Path]) -> list[Row]:
    """The affected records of all runs: those of this one, and what the list means in any other."""
    tables = [str(path) for folder in folders for path in sorted((folder / "documents").glob("*.parquet"))]
    condition, parameters = any_of(request.asked.selectors)
    found = request.ledger.rows(
        f"SELECT DISTINCT source, id FROM read_parquet({text_list(tables)}, union_by_name = true) "
        f"WHERE {condition} OR {AFFECTED}",
        [*parameters, *request.keys],
    )
    return sorted(found, key=lambda row: (row["source"], row["id"]))


def _holding(request: Request, manifest_path: Path) -> Iterator[Row]:
    folder = manifest_path.parent
    manifest = json.loads(manifest_path.read_text("utf-8"))
    output = {name: manifest[name] for name in ("stage", "key", "digest")}
    for tables, condition, what in (
        (("documents", "data", "index"), "true", "holds documents"),
        (("removed",), "excerpt != ''", "holds excerpts"),
    ):
        files = [str(path) for table in tables for path in sorted((folder / table).glob("*.parquet"))]
        query = f"SELECT count(*) AS n FROM read_parquet({text_list(files)}) WHERE {AFFECTED} AND {condition}"
        count = request.ledger.rows(query, keys_of(request.everywhere))[0]["n"] if files else 0
        if count:
            yield output | {"documents": count, "what": what}


def _trained_on(request: Request, packed: Row) -> Iterator[Row]:
    store = request.ledger.store
    node = Node(stage="packing", label="all", key=packed["key"], digest=packed["digest"])
    ledger = request.ledger
    ranges = token_ranges(ledger, node, request.everywhere)
    for seen in seen_by(store, node, ranges):
        what = f"{seen['steps_that_saw_it']} of {seen['steps']} training steps saw such documents"
        if seen["validation"]:
            what += "; its validation did, too"
        yield {
            "stage": "training",
            "key": seen["key"],
            "digest": seen["digest"],
            "documents": None,
            "what": what,
        }
        for stage in ("text_generation", "model_publication"):
            yield from _made_from(store, stage, seen["digest"], "made from such a checkpoint")


def _made_from(store: Store, stage: str, digest: str, what: str) -> list[Row]:
    """The outputs of a stage that were made from an input with a digest."""
    manifests = [json.loads((folder / MANIFEST).read_text("utf-8")) for folder in store.folders(stage)]
    return [
        {name: manifest[name] for name in ("stage", "key", "digest")} | {"documents": None, "what": what}
        for manifest in manifests
        if digest in manifest["recipe"]["inputs"]
    ]
