"""Why: what a reason removes, with excerpts, and the near misses on the kept side."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from pipeline_config.errors import AuditError
from pipeline_config.settings import Settings
from tasks.audit.ledger import IDENTITY, Ledger
from tasks.lineage import Node
from tasks.steps.deduplication import signature_block
from tasks.steps.quality_filtering import value_column
from tasks.steps.shards import EXCERPT_CHARACTERS

Row = dict[str, Any]
MOST_COMPARED = 2000  # kept documents among which near misses are looked for
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def why(ledger: Ledger, stage: str, reason: str, sample: int = 20, seed: int = 0) -> Row:
    """A seeded sample of what a stage removed (or failed on) for a reason, and near misses that it kept.

    Near misses are looked for among a seeded sample of the kept documents.

    Raises:
        AuditError: the run has no such stage, or the stage no such reason.
    """
    nodes = [node for node in ledger.stages if node.stage == ledger.node(stage).stage]
    counts = _reasons(ledger, nodes)
    if reason not in {row["reason"] for row in counts}:
        known = ", ".join(f"{row['reason']} ({row['records']})" for row in counts) or "none"
        raise AuditError(
            f"{stage} of run {ledger.run.id} gave no reason {reason!r}; its reasons are: {known}"
        )
    lost = " UNION ALL ".join(
        ledger.lost(node, "id", "url", "source", "fate", "reason", "value", "excerpt") for node in nodes
    )
    rows = ledger.rows(
        f"SELECT * FROM ({lost}) WHERE reason = ? "
        "ORDER BY sha256(? || id || source), url, value, excerpt LIMIT ?",
        [reason, f"{seed}:", sample],
    )
    total = sum(row["records"] for row in counts if row["reason"] == reason)
    near, compared = near_misses(ledger, nodes, reason, sample, seed)
    return {
        "run": ledger.run.id,
        "stage": stage,
        "reason": reason,
        "records": total,
        "reasons_of_the_stage": counts,
        "sample": rows,
        "near_misses": near,
        "compared": compared,
    }


def _reasons(ledger: Ledger, nodes: list[Node]) -> list[Row]:
    lost = " UNION ALL ".join(ledger.lost(node, "fate", "reason") for node in nodes)
    return ledger.rows(
        f"SELECT fate, reason, count(*) AS records FROM ({lost}) GROUP BY ALL ORDER BY records DESC, reason"
    )


def near_misses(
    ledger: Ledger, nodes: list[Node], reason: str, most: int, seed: int
) -> tuple[list[Row], int]:
    """(documents that were kept, with the values next to the threshold; how many were looked at)."""
    kept = " UNION ALL ".join(
        ledger.kept(node, *IDENTITY, "url", "text", "language", "language_score") for node in nodes
    )
    rows = ledger.rows(
        f"SELECT * FROM ({kept}) ORDER BY sha256(? || id || source), url, text LIMIT ?",
        [f"{seed}:", MOST_COMPARED],
    )
    settings = Settings.model_validate(ledger.run.settings)
    if reason == "near_duplicate":
        return _most_similar(rows, settings, most), len(rows)
    if nodes[0].stage == "language_identification":
        section = settings.language_identification
        least = {one.language: one.min_score for one in section.thresholds}
        values = {_identity(row): row["language_score"] for row in rows}
        # a removed score is that of whatever language: the distance is to what the kept one had to reach
        beyond = {_identity(row): [least.get(row["language"], section.min_score)] for row in rows}
    elif nodes[0].stage == "quality_filtering":
        values = _values_on_record(ledger, nodes, value_column(reason), rows)
        beyond = dict.fromkeys(values, _removed_values(ledger, nodes, reason))
    else:
        return [], 0
    valued = [row | {"number": values[key]} for row in rows if values.get(key := _identity(row)) is not None]
    valued.sort(key=lambda row: (_distance(row["number"], beyond[_identity(row)]), row["id"]))
    return [_shown(row, f"{row['number']:.6g}") for row in valued[:most]], len(rows) if values else 0


def _identity(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in IDENTITY)


def _values_on_record(
    ledger: Ledger, nodes: list[Node], column: str, rows: list[Row]
) -> dict[tuple[object, ...], float]:
    """What a rule found in documents that were kept; nothing where the stage did not write it down."""
    noted = [node for node in nodes if ledger.files(node, "annotations")]
    files = [file for node in noted for file in ledger.files(node, "annotations")]
    if not files or any(column not in pq.read_schema(file).names for file in files):
        return {}
    tables = " UNION ALL ".join(ledger.annotations(node, *IDENTITY, "fate", column) for node in noted)
    found = ledger.rows(
        f"SELECT * FROM ({tables}) WHERE fate = 'kept' AND id IN (SELECT unnest(?))",
        [[row["id"] for row in rows]],
    )
    return {_identity(row): row[column] for row in found}


def _removed_values(ledger: Ledger, nodes: list[Node], reason: str) -> np.ndarray:
    lost = " UNION ALL ".join(ledger.lost(node, "reason", "value") for node in nodes)
    rows = ledger.rows(f"SELECT DISTINCT value FROM ({lost}) WHERE reason = ?", [reason])
    numbers = [NUMBER.search(row["value"] or "") for row in rows]
    return np.array(sorted(float(found.group()) for found in numbers if found) or [0.0])


def _distance(value: float, removed: Sequence[float] | np.ndarray) -> float:
    """How far a kept value is from the nearest of the sorted removed ones: the threshold lies between."""
    place = int(np.searchsorted(removed, value))
    return float(np.abs(np.asarray(removed[max(0, place - 1) : place + 1]) - value).min())


def _most_similar(rows: list[Row], settings: Settings, most: int) -> list[Row]:
    """The most similar pairs of kept documents, by the agreement of their signatures."""
    block = signature_block(settings.deduplication)
    signed = [(row, shingles) for row in rows if (shingles := block.get_shingles(row["text"])).size]
    if len(signed) < 2:
        return []
    signatures = np.array([np.asarray(block.get_signature(shingles)).ravel() for _, shingles in signed])
    best = []
    for index in range(len(signed) - 1):
        agreement = (signatures[index + 1 :] == signatures[index]).mean(axis=1)
        other = int(np.argmax(agreement))
        best.append((float(agreement[other]), index, index + 1 + other))
    best.sort(reverse=True)
    return [
        _shown(signed[one][0], f"{value:.3f} of {signed[other][0]['id']}")
        for value, one, other in best[:most]
    ]


def _shown(row: Row, value: str) -> Row:
    shown = {name: row[name] for name in ("id", "url", "source")}
    return shown | {"value": value, "excerpt": (row["text"] or "")[:EXCERPT_CHARACTERS]}
