"""The proof that nothing of what had to go is left in a new run."""

import hashlib
import html
import json
import shutil
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from pipeline_config.errors import StageError
from tasks.audit.exposure import token_ranges
from tasks.audit.ledger import LAST_STAGE, Ledger
from tasks.executor import run_pipeline
from tasks.run import Run
from tasks.steps.deduplication import WriteSignatures, signature_block
from tasks.steps.selection import any_of
from tasks.steps.shards import EXCERPT_CHARACTERS, ReadShard
from tasks.steps.takedown import REASON
from tasks.takedown.request import AFFECTED, Request

Row = dict[str, Any]
SNIPPET_CHARACTERS, SHORTEST_TEXT = 120, 40
TEXT_STAGES = ("document_import", "text_extraction", "language_identification", "quality_filtering")


def remaining(request: Request, run: Run) -> list[Row]:
    """What is left of the affected documents in a new run: near-duplicates that clusters did not show.

    Raises:
        StageError: an affected document itself, or its text or tokens, is left.
    """
    ledger = Ledger(run.record, run.store)
    texts = _texts(request)
    _check_ids(request, ledger)
    _check_tokens(request, ledger)
    left = _similar(request, run, ledger, texts) + _excerpts(ledger, texts)
    if not left:  # else a sample may be of what was found just now
        _check_snippets(ledger, texts)
    return left


def _texts(request: Request) -> dict[tuple[str, str], str]:
    """The longest known text of each affected document, by source and id, from the old run."""
    nodes = [node for node in request.ledger.stages if node.stage in TEXT_STAGES]
    kept = " UNION ALL ".join(request.ledger.kept(node, "source", "id", "text") for node in nodes)
    rows = request.ledger.rows(
        f"SELECT source, id, arg_max(text, length(text)) AS text FROM ({kept}) WHERE {AFFECTED} "
        "GROUP BY source, id",
        request.keys,
    )
    return {(row["source"], row["id"]): row["text"] for row in rows if row["text"]}


def _check_ids(request: Request, ledger: Ledger) -> None:
    asked, parameters = any_of(request.asked.selectors)
    condition, parameters = f"({asked} OR {AFFECTED})", [*parameters, *request.keys]
    columns = ("source", "id", "url")
    for node in ledger.stages:
        left = ledger.rows(f"SELECT id FROM ({ledger.kept(node, *columns)}) WHERE {condition}", parameters)
        if left:
            raise StageError(f"takedown: {node.name} still holds {left[0]['id']} and {len(left) - 1} others")
    lost = ledger.rows(
        f"SELECT id FROM ({ledger.all_lost(*columns, 'reason', 'excerpt')}) WHERE {condition} "
        "AND (reason != ? OR excerpt != '')",
        [*parameters, REASON],
    )
    if lost:
        raise StageError(f"takedown: an excerpt of {lost[0]['id']} is still in the ledger")


def _check_tokens(request: Request, ledger: Ledger) -> None:
    packing = ledger.run.last("packing")
    if packing is None:
        return
    for row in request.records:
        if token_ranges(ledger, packing, row["id"], row["source"]):
            raise StageError(f"takedown: tokens of {row['id']} are still in packing/{packing.key}")
    described = json.loads((ledger.store.path(packing.output) / "tokens.json").read_text("utf-8"))
    (counted,) = ledger.rows(
        "SELECT coalesce(sum(end_token - start_token), 0)::BIGINT AS n FROM read_parquet(?)",
        [ledger.files(packing, "index")],
    )
    total = sum(shard["tokens"] for shard in described["shards"])
    if counted["n"] != total:
        raise StageError(f"takedown: packing/{packing.key} has {total} tokens, its index {counted['n']}")


def _check_snippets(ledger: Ledger, texts: dict[tuple[str, str], str]) -> None:
    """No beginning, middle or end of an affected text is in a card, report or sample of the new run.

    What other documents of the new corpus say, too, such as a licence at the top of many texts, may be shown.
    """
    corpus = next(node for node in ledger.stages if node.stage == LAST_STAGE)
    said_by_others = f"SELECT 1 FROM ({ledger.kept(corpus, 'text')}) WHERE contains(text, ?) LIMIT 1"
    paths = [
        path
        for node in ledger.run.nodes
        if node.stage in ("corpus_publication", "model_publication", "text_generation")
        for path in sorted(ledger.store.path(node.output).glob("*.*"))
        if path.suffix in (".md", ".html", ".json")
    ]
    for path in paths:
        page = html.unescape(path.read_text("utf-8", "replace"))
        for (_, identity), text in texts.items():
            shown = (snippet for snippet in snippets(text) if snippet in page)
            if any(not ledger.rows(said_by_others, [snippet]) for snippet in shown):
                raise StageError(f"takedown: {path} still shows text of {identity}")


def _excerpts(ledger: Ledger, texts: dict[tuple[str, str], str]) -> list[Row]:
    """Records that the new run removed for other reasons, whose excerpt is of an affected text."""
    beginnings = {text[:EXCERPT_CHARACTERS] for text in texts.values() if len(text) >= SHORTEST_TEXT}
    return ledger.rows(
        "SELECT DISTINCT id, source, url, 'found by the proof' AS why "
        f"FROM ({ledger.all_lost('id', 'source', 'url', 'excerpt')}) WHERE excerpt IN (SELECT unnest(?))",
        [sorted(beginnings)],
    )


def snippets(text: str) -> list[str]:
    """The beginning, middle and end of a text; none of a text that is too short to tell."""
    if len(text) < SHORTEST_TEXT:
        return []
    middle = max(0, len(text) // 2 - SNIPPET_CHARACTERS // 2)
    parts = (
        text[:SNIPPET_CHARACTERS],
        text[middle : middle + SNIPPET_CHARACTERS],
        text[-SNIPPET_CHARACTERS:],
    )
    return [part for part in dict.fromkeys(parts) if len(part) >= SHORTEST_TEXT]


def _similar(request: Request, run: Run, ledger: Ledger, texts: dict[tuple[str, str], str]) -> list[Row]:
    """Documents of the new corpus that share a band of their signature or their text with an affected one."""
    settings = run.settings.deduplication
    block = signature_block(settings)
    shingled = [shingles for text in texts.values() if (shingles := block.get_shingles(text)).size]
    rows = settings.rows_per_band
    gone = [np.asarray(block.get_signature(shingles), dtype="<u8").ravel() for shingles in shingled]
    bands = [{g[b * rows : (b + 1) * rows].tobytes() for g in gone} for b in range(settings.bands)]
    digests = {hashlib.sha256(text.encode()).digest() for text in texts.values()}
    corpus = next(node for node in ledger.stages if node.stage == "document_split")
    shards = ledger.files(corpus, "documents")
    scratch = request.folder / "signatures" / corpus.key[:16]
    writer = WriteSignatures(str(scratch), settings, [True] * len(shards))
    workers = run.settings.execution.workers
    steps = [ReadShard(shards), writer]
    run_pipeline(steps, tasks=len(shards), workers=workers, logging_dir=scratch / "logs")
    similar: set[str] = set()
    for path in sorted((scratch / "signatures").glob("*.parquet")):
        signed = pq.read_table(path)
        for identity, signature in zip(
            signed["id"].to_pylist(), signed["signature"].to_pylist(), strict=True
        ):
            parts = (signature[8 * rows * b : 8 * rows * (b + 1)] for b in range(settings.bands))
            if any(part in known for part, known in zip(parts, bands, strict=True)):
                similar.add(identity)
    shutil.rmtree(scratch)
    found = ledger.rows(
        f"SELECT id, source, url, text FROM ({ledger.kept(corpus, 'id', 'source', 'url', 'text')}) "
        "WHERE id IN (SELECT unnest(?)) OR unhex(sha256(text)) IN (SELECT unnest(?))",
        [sorted(similar), sorted(digests)],
    )
    names = ("id", "source", "url")
    return [{name: row[name] for name in names} | {"why": "found by the proof"} for row in found]
