"""The proof that nothing of what had to go is left in a new run."""

import hashlib
import html
import json
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from pipeline_config.errors import StageError
from tasks.audit.exposure import token_ranges
from tasks.audit.ledger import LAST_STAGE, Ledger, row_at, text_list
from tasks.executor import run_pipeline
from tasks.lineage import Node
from tasks.run import Run
from tasks.steps.deduplication import WriteSignatures, signature_block
from tasks.steps.selection import any_of
from tasks.steps.shards import EXCERPT_CHARACTERS, ReadShard
from tasks.steps.takedown import REASON
from tasks.takedown.request import AFFECTED, Request

Row = dict[str, Any]
SNIPPET_CHARACTERS, SHORTEST_TEXT = 120, 40


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


def _texts(request: Request) -> list[str]:
    """All texts that the affected documents had in the old run, before and after each change."""
    nodes = [node for node in request.ledger.stages if node.stage != "url_filtering"]
    kept = " UNION ALL ".join(request.ledger.kept(node, "source", "id", "text") for node in nodes)
    rows = request.ledger.rows(
        f"SELECT DISTINCT text FROM ({kept}) WHERE {AFFECTED} AND text != '' ORDER BY text", request.keys
    )
    return [row["text"] for row in rows]


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
    for found in token_ranges(ledger, packing, request.records):
        raise StageError(f"takedown: tokens of {found['id']} are still in packing/{packing.key}")
    described = json.loads((ledger.store.path(packing.output) / "tokens.json").read_text("utf-8"))
    (counted,) = ledger.rows(
        "SELECT coalesce(sum(end_token - start_token), 0)::BIGINT AS n FROM read_parquet(?)",
        [ledger.files(packing, "index")],
    )
    total = sum(shard["tokens"] for shard in described["shards"])
    if counted["n"] != total:
        raise StageError(f"takedown: packing/{packing.key} has {total} tokens, its index {counted['n']}")


def _check_snippets(ledger: Ledger, texts: list[str]) -> None:
    """No beginning, middle or end of an affected text is in a card, report or sample of the new run.

    What other documents say, too, such as a licence at the top of many texts, may be shown.
    """
    said_by_others = (
        f"SELECT 1 FROM (SELECT text FROM ({ledger.kept(_corpus(ledger), 'text')}) UNION ALL "
        f"SELECT excerpt FROM ({ledger.all_lost('excerpt')})) WHERE contains(text, ?) LIMIT 1"
    )
    paths = [
        path
        for node in ledger.run.nodes
        if node.stage in ("corpus_publication", "model_publication", "text_generation")
        for path in sorted(ledger.store.path(node.output).glob("*.*"))
        if path.suffix in (".md", ".html", ".json")
    ]
    for path in paths:
        page = html.unescape(path.read_text("utf-8", "replace"))
        shown = (snippet for text in texts for snippet in snippets(text) if snippet in page)
        for snippet in shown:
            if not ledger.rows(said_by_others, [snippet]):
                raise StageError(f"takedown: {path} still shows {snippet[:SHORTEST_TEXT]!r}")


def _excerpts(ledger: Ledger, texts: list[str]) -> list[Row]:
    """Records that the new run removed for other reasons, whose excerpt is of an affected text."""
    beginnings = {text[:EXCERPT_CHARACTERS] for text in texts if len(text) >= SHORTEST_TEXT}
    return ledger.rows(
        "SELECT DISTINCT id, source, url, 'found by the proof' AS why "
        f"FROM ({ledger.all_lost('id', 'source', 'url', 'excerpt')}) WHERE excerpt IN (SELECT unnest(?)) "
        "ORDER BY source, id, url",
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


def _similar(request: Request, run: Run, ledger: Ledger, texts: list[str]) -> list[Row]:
    """Documents of the new corpus that share a band of their signature or their text with an affected one."""
    shards = ledger.files(_corpus(ledger), "documents")
    places = {(shards[shard], row) for shard, row in _of_a_band(request, run, texts, shards)}
    digests = sorted({hashlib.sha256(text.encode()).hexdigest() for text in texts})
    same = ledger.rows(
        f"SELECT filename AS file, file_row_number AS row FROM read_parquet({text_list(shards)}, "
        "filename = true, file_row_number = true) WHERE sha256(text) IN (SELECT unnest(?))",
        [digests],
    )
    places |= {(place["file"], place["row"]) for place in same}
    found = [row_at(file, row, ["id", "source", "url"]) for file, row in sorted(places)]
    return [row | {"why": "found by the proof"} for row in found]


def _of_a_band(request: Request, run: Run, texts: list[str], shards: list[str]) -> Iterator[tuple[int, int]]:
    """(shard, row) of the documents that agree with one of the texts in all rows of a band."""
    settings = run.settings.deduplication
    block = signature_block(settings)
    shingled = [shingles for text in texts if (shingles := block.get_shingles(text)).size]
    width = 8 * settings.rows_per_band
    gone = [np.asarray(block.get_signature(shingles), dtype="<u8").tobytes() for shingles in shingled]
    bands = [slice(width * band, width * (band + 1)) for band in range(settings.bands)]
    known = [{signature[band] for signature in gone} for band in bands]
    scratch = request.folder / "signatures" / run.record.id
    try:
        steps = [ReadShard(shards), WriteSignatures(str(scratch), settings, [True] * len(shards))]
        execution = run.settings.execution
        run_pipeline(
            steps,
            tasks=len(shards),
            workers=execution.workers,
            logging_dir=scratch / "logs",
            settings=execution.executor,
        )
        for shard, path in enumerate(sorted((scratch / "signatures").glob("*.parquet"))):
            for signed in pq.read_table(path, columns=["row", "signature"]).to_pylist():
                if any(signed["signature"][band] in keys for band, keys in zip(bands, known, strict=True)):
                    yield shard, signed["row"]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _corpus(ledger: Ledger) -> Node:
    return next(node for node in ledger.stages if node.stage == LAST_STAGE)
