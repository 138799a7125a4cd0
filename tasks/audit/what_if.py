"""What if: how many documents and tokens another setting would win or lose, from a seeded sample.

The stages that look at one document at a time are computed again on the sample under both settings, from the
first stage that the change concerns to the last. Documents that are won may still be duplicates of others:
deduplication looks at all documents, so it is only computed again within the sample when its own settings
change, and then the sample is said to underestimate it.
"""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document
from tokenizers import Tokenizer

from pipeline_config.errors import AuditError
from pipeline_config.presets import apply_overrides
from pipeline_config.settings import Settings
from tasks.audit.ledger import Ledger, text
from tasks.audit.trace import source_uri
from tasks.lineage import Node
from tasks.steps.deduplication import duplicate_pairs, first_of_cluster, signature_block
from tasks.steps.document_split import split_of
from tasks.steps.language_identification import IdentifyLanguage
from tasks.steps.packing import load_tokenizer
from tasks.steps.pii_scrubbing import ScrubPii
from tasks.steps.quality_filtering import FilterQuality
from tasks.steps.shards import FATE, NOTES, DecidingStep, Fate
from tasks.steps.takedown import REASON as TAKEN_DOWN
from tasks.steps.text_extraction import ExtractText
from tasks.steps.url_filtering import FilterUrls
from tasks.steps.warc.payload import Limits
from tasks.steps.warc.ranges import ReadRecords
from tasks.url_lists import find_lists

Row = dict[str, Any]
CHAIN = (
    "url_filtering",
    "text_extraction",
    "language_identification",
    "quality_filtering",
    "deduplication",
    "pii_scrubbing",
    "document_split",
)
CONFIDENCE = 1.96  # standard errors on each side for 95 %
MOST_EXAMPLES = 10


def what_if(ledger: Ledger, overrides: list[str], sample: int = 1000, seed: int = 0) -> Row:
    """Documents and tokens that the overrides would win and lose, estimated from a sample of each source.

    Raises:
        AuditError: the overrides change nothing, or something that removes no documents.
    """
    before = Settings.model_validate(ledger.run.settings)
    after = apply_overrides(before, overrides)
    stage = _first_changed(before, after)
    results = [
        _of_source(ledger, source.name, stage, before, after, sample, seed)
        for source in before.sources
        if stage in source.stages or (stage in CHAIN[:2] and source.kind != "documents") or stage in CHAIN[5:]
    ]
    if not results:
        raise AuditError(f"no source passes the stage {stage}: the change concerns no document")
    return {
        "run": ledger.run.id,
        "overrides": overrides,
        "stage": stage,
        "seed": seed,
        "sources": results,
        "notes": _notes(ledger, stage),
    }


def _first_changed(before: Settings, after: Settings) -> str:
    changed = [name for name in type(before).model_fields if getattr(before, name) != getattr(after, name)]
    first = next((stage for stage in CHAIN if stage in changed), None)
    if first is None:
        what = f"they change only {', '.join(changed)}" if changed else "they change nothing"
        raise AuditError(
            f"the overrides remove and win no document: {what}. Stages to change: {', '.join(CHAIN)}"
        )
    return first


def _of_source(
    ledger: Ledger, source: str, stage: str, before: Settings, after: Settings, sample: int, seed: int
) -> Row:
    records, total = _sample(ledger, source, stage, sample, seed)
    fates = [_fates(ledger, records, stage, source, settings) for settings in (before, after)]
    kept = [{index for index, fate in enumerate(found) if fate[0] == "kept"} for found in fates]
    won, lost = sorted(kept[1] - kept[0]), sorted(kept[0] - kept[1])
    tokenizer = _tokenizer(ledger)
    scale = total / len(records) if records else 0.0
    result: Row = {"source": source, "records": total, "sampled": len(records)}
    for name, indices, side in (("won", won, 1), ("lost", lost, 0)):
        documents = [fates[side][index][2] for index in indices]
        result[name] = _estimate(len(indices), len(records), total)
        result[f"{name}_tokens"] = _tokens(tokenizer, documents, scale)
        result[f"{name}_examples"] = _examples(records, fates, indices[:MOST_EXAMPLES])
    moved = [i for i in kept[0] & kept[1] if fates[0][i][1] != fates[1][i][1]]
    changed = [i for i in kept[0] & kept[1] if fates[0][i][2] != fates[1][i][2]]
    result["moved_to_the_other_split"] = _estimate(len(moved), len(records), total)
    result["texts_changed"] = _estimate(len(changed), len(records), total)
    result["reasons"] = [dict(Counter(fate[1] for fate in found)) for found in fates]
    return result


def _estimate(found: int, sampled: int, total: int) -> Row:
    """The number in all records, with a 95 % interval (Wilson's, with the finite population's correction).

    Source: Wilson 1927, "Probable inference", Journal of the American Statistical Association 22.
    """
    if not sampled:
        return {"in_sample": 0, "estimate": 0, "from": 0, "to": 0}
    if sampled >= total:
        return {"in_sample": found, "estimate": found, "from": found, "to": found}
    share, z = found / sampled, CONFIDENCE * math.sqrt((total - sampled) / max(1, total - 1))
    middle = (share + z * z / (2 * sampled)) / (1 + z * z / sampled)
    half = z * math.sqrt(share * (1 - share) / sampled + z * z / (4 * sampled**2)) / (1 + z * z / sampled)
    low = max(found, total * (middle - half))
    high = min(total - sampled + found, total * (middle + half))
    return {
        "in_sample": found,
        "estimate": round(share * total),
        "from": math.floor(low),
        "to": math.ceil(high),
    }


def _sample(ledger: Ledger, source: str, stage: str, sample: int, seed: int) -> tuple[list[Row], int]:
    """A seeded sample of the records that a stage got of a source, and how many it got."""
    columns = ["id", "url", "source", "date", "dump", "file_path", "warc_offset", "warc_length"]
    if stage == "url_filtering":
        got = _entries(ledger, ledger.node(stage, source), columns)
    else:
        before = _inputs(ledger, ledger.node(stage, source))
        texts = () if stage == "text_extraction" else ("text", "language", "language_score")
        got = " UNION ALL BY NAME ".join(ledger.kept(node, *columns, *texts) for node in before)
    got = f"SELECT * FROM ({got}) WHERE source = ?"
    ((total,),) = [row.values() for row in ledger.rows(f"SELECT count(*) AS n FROM ({got})", [source])]
    rows = ledger.rows(
        f"SELECT * FROM ({got}) ORDER BY sha256(? || id || coalesce(warc_offset::VARCHAR, '')), id LIMIT ?",
        [source, f"{seed}:", sample],
    )
    return sorted(rows, key=lambda r: (r.get("file_path") or "", r.get("warc_offset") or 0, r["id"])), total


def _entries(ledger: Ledger, node: Node, columns: list[str]) -> str:
    """The records of a crawl but those taken down, as SQL."""
    both = f"{ledger.kept(node, *columns)} UNION ALL BY NAME {ledger.lost(node, *columns, 'reason', 'value')}"
    return f"SELECT * FROM ({both}) WHERE reason IS DISTINCT FROM {text(TAKEN_DOWN)}"


def _inputs(ledger: Ledger, node: Node) -> list[Node]:
    return [found for found in ledger.stages if found.name in node.inputs]


def _fates(
    ledger: Ledger, records: list[Row], first: str, source: str, settings: Settings
) -> list[tuple[str, str, str]]:
    """(kept or not, reason or split, text) of each record under some settings."""
    documents = [_document(row) for row in records]
    section = next(found for found in settings.sources if found.name == source)
    for stage in CHAIN[CHAIN.index(first) :]:
        if stage == "deduplication" and first == stage and stage in section.stages:
            _deduplicate(documents, settings)
        elif stage == "text_extraction":
            if section.kind != "documents":
                _extract(ledger, documents, settings)
        elif stage in section.stages or stage in ("url_filtering", "pii_scrubbing"):
            step = _step(stage, settings)
            if step is not None:
                documents = list(step.run(iter(documents)))
    return [_fate(document, settings) for document in documents]


def _step(stage: str, settings: Settings) -> DecidingStep | None:
    if stage == "url_filtering":
        return FilterUrls(settings.url_filtering, find_lists(settings.url_filtering))
    if stage == "language_identification":
        return IdentifyLanguage(settings.language_identification)
    if stage == "quality_filtering":
        return FilterQuality(settings.quality_filtering)
    if stage == "pii_scrubbing":
        skip = frozenset(s.name for s in settings.sources if "pii_scrubbing" not in s.stages)
        return ScrubPii(settings.pii_scrubbing, skip)
    return None


def _document(row: Row) -> Document:
    fields = {n: v for n, v in row.items() if v is not None and n not in ("text", "id", "reason", "value")}
    if row.get("reason") == "payload_type":
        fields["payload_type"] = row["value"]
    if row.get("reason") == "http_status":
        fields[NOTES] = {"http_status": int(row["value"])}
    if row.get("reason") == "revisit":
        fields["record_type"] = "revisit"
    return Document(text=row.get("text") or "", id=row["id"], metadata=fields)


def _extract(ledger: Ledger, documents: list[Document], settings: Settings) -> None:
    """Fetches the pages of the documents again and extracts their texts."""
    section = settings.text_extraction
    waiting = [document for document in documents if FATE not in document.metadata]
    uris = {d.metadata["file_path"]: source_uri(ledger, d.metadata) or "" for d in waiting}
    reader = ReadRecords([], uris, Limits(section.max_payload_bytes, section.max_decoding_ratio))
    for document in reader.attach(waiting):
        document.text = ""
    for _ in ExtractText(section).run(iter(waiting)):
        pass


def _deduplicate(documents: list[Document], settings: Settings) -> None:
    """Marks all documents but the first of each cluster within the sample."""
    section = settings.deduplication
    block = signature_block(section)
    waiting = [d for d in documents if FATE not in d.metadata]
    signed = [(d, shingles) for d in waiting if (shingles := block.get_shingles(d.text)).size]
    if not signed:
        return
    signatures = np.array([np.asarray(block.get_signature(s)).ravel() for _, s in signed], dtype="<u8")
    firsts = first_of_cluster(duplicate_pairs(signatures, section.bands), len(signed))
    for index, (document, _) in enumerate(signed):
        if firsts[index] != index:
            document.metadata[FATE] = Fate("removed", "near_duplicate")


def _fate(document: Document, settings: Settings) -> tuple[str, str, str]:
    fate = document.metadata.get(FATE)
    if fate is not None:
        return fate.kind, fate.reason, document.text
    return "kept", split_of(document.id, settings.document_split), document.text


def _tokenizer(ledger: Ledger) -> Tokenizer | None:
    node = ledger.run.last("bpe_training")
    path = ledger.store.path(node.output) / "tokenizer" / "tokenizer.json" if node else Path("/nowhere")
    return load_tokenizer(str(path)) if path.is_file() else None


def _tokens(tokenizer: Tokenizer | None, texts: Iterable[str], scale: float) -> int | None:
    if tokenizer is None:
        return None
    return round(scale * sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(list(texts))))


def _examples(records: list[Row], fates: list[list[tuple[str, str, str]]], indices: list[int]) -> list[Row]:
    return [
        {
            "id": records[index]["id"],
            "url": records[index].get("url"),
            "before": " ".join(fates[0][index][:2]),
            "after": " ".join(fates[1][index][:2]),
        }
        for index in indices
    ]


def _notes(ledger: Ledger, stage: str) -> list[str]:
    notes = []
    if stage == "deduplication":
        notes.append(
            "Duplicates are looked for within each source's sample: pairs across sources are not seen, and a "
            "sample that is smaller than its source holds few of the pairs. Take this for a lower bound."
        )
    if stage == "url_filtering":
        notes.append(
            "The payload types of pages that were kept are not on record: leaving one of them out shows no "
            "loss."
        )
    if CHAIN.index(stage) < CHAIN.index("deduplication"):
        node = next((node for node in ledger.stages if node.stage == "deduplication"), None)
        if node:
            report = ledger.store.report(node.output)
            share = 1 - report["kept"] / report["read"] if report["read"] else 0.0
            notes.append(
                "Deduplication is not computed again: of documents that are won some are duplicates (in this "
                f"run it removed {share:.1%} of what it read)."
            )
    return notes
