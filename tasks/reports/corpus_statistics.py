"""The figures of a corpus, from the ledger of the run that made it: plain data for its card and report."""

import json
from typing import Any

from pipeline_config.settings import Settings
from tasks.audit.ledger import FIRST_STAGES, LAST_STAGE, Ledger
from tasks.lineage import Node
from tasks.steps.shards import EXCERPT_CHARACTERS
from tasks.steps.takedown import REASON

Row = dict[str, Any]
KEPT_EXCERPT_CHARACTERS = 600
SCORE_STEP = 0.05
HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://([^/?#\\]*@)?([^/?#:\\]*)"


def corpus_statistics(ledger: Ledger, samples: int, domains: int, seed: int) -> Row:
    """All figures of a corpus: funnel, reasons, sizes, languages, domains, clusters, tokens and samples."""
    corpus = _kept(ledger, "text", "url", "language", "language_score", "source", "id")
    (totals,) = ledger.rows(
        f"SELECT count(*) AS documents, coalesce(sum(strlen(text)), 0)::BIGINT AS text_bytes FROM ({corpus})"
    )
    return {
        "totals": totals,
        "read": ledger.rows(f"SELECT count(*) AS n FROM ({ledger.read('id')})")[0]["n"],
        "splits": _splits(ledger),
        "stages": [_stage(ledger, node) for node in ledger.stages],
        "reasons": _reasons(ledger),
        "lengths": ledger.rows(
            "SELECT floor(log10(greatest(length(text), 1)) * 4) / 4 AS bin, count(*) AS documents "
            f"FROM ({corpus}) GROUP BY bin ORDER BY bin"
        ),
        "languages": ledger.rows(
            "SELECT coalesce(language, 'not identified') AS language, count(*) AS documents "
            f"FROM ({corpus}) GROUP BY 1 ORDER BY documents DESC, 1 LIMIT 30"
        ),
        "scores": ledger.rows(
            f"SELECT floor(language_score / {SCORE_STEP}) * {SCORE_STEP} AS score, count(*) AS documents "
            f"FROM ({corpus}) WHERE language_score IS NOT NULL GROUP BY 1 ORDER BY 1"
        ),
        "domains": ledger.rows(
            f"SELECT lower(regexp_extract(url, '{HOST}', 2)) AS domain, "
            f"count(*) AS documents, sum(strlen(text))::BIGINT AS text_bytes FROM ({corpus}) "
            "WHERE url IS NOT NULL GROUP BY 1 ORDER BY documents DESC, 1 LIMIT ?",
            [domains],
        ),
        "clusters": _clusters(ledger),
        "tokens": _tokens(ledger),
        "kept_samples": ledger.rows(
            f"SELECT source, url, id, left(text, {KEPT_EXCERPT_CHARACTERS}) AS excerpt FROM ({corpus}) "
            "ORDER BY sha256(? || id || source), url, excerpt LIMIT ?",
            [f"{seed}:", samples],
        ),
        "removed_samples": _removed_samples(ledger, samples, seed),
        "sources": _sources(ledger),
    }


def _kept(ledger: Ledger, *columns: str) -> str:
    return " UNION ALL ".join(ledger.kept(node, *columns) for node in _ends(ledger))


def _ends(ledger: Ledger) -> list[Node]:
    return [node for node in ledger.stages if node.stage == LAST_STAGE]


def _splits(ledger: Ledger) -> list[Row]:
    kept = _kept(ledger, "text", "source", "filename")
    return ledger.rows(
        "SELECT split_part(parse_filename(filename), '-', 1) AS split, source, count(*) AS documents, "
        f"sum(strlen(text))::BIGINT AS text_bytes FROM ({kept}) GROUP BY 1, 2 ORDER BY 1, 2"
    )


def _stage(ledger: Ledger, node: Node) -> Row:
    report = ledger.store.report(node.output)
    counts = {name: report[name] for name in ("read", "kept", "removed", "failed")}
    return {"stage": node.stage, "source": node.label, "name": node.name, "inputs": node.inputs} | counts


def _reasons(ledger: Ledger) -> list[Row]:
    return ledger.rows(
        "SELECT stage, fate, reason, count(*) AS records "
        f"FROM ({ledger.all_lost('fate', 'reason')}) GROUP BY stage, fate, reason "
        "ORDER BY min(stage_order), records DESC, reason"
    )


def _clusters(ledger: Ledger) -> list[Row]:
    node = next((node for node in ledger.stages if node.stage == "deduplication"), None)
    files = sorted((ledger.store.path(node.output) / "clusters").glob("*.parquet")) if node else []
    if not files:
        return []
    return ledger.rows(
        "SELECT size, count(*) AS clusters, (size - 1) * count(*) AS removed FROM "
        "(SELECT count(*) AS size FROM read_parquet(?) GROUP BY cluster) GROUP BY size ORDER BY size",
        [[str(path) for path in files]],
    )


def _tokens(ledger: Ledger) -> Row | None:
    packing = ledger.run.last("packing")
    if packing is None:
        return None
    described = json.loads((ledger.store.path(packing.output) / "tokens.json").read_text("utf-8"))
    (counted,) = ledger.rows(
        "SELECT count(*) AS documents, sum(token_count)::BIGINT AS tokens, "
        "median(token_count) AS median_tokens, max(token_count) AS most_tokens FROM read_parquet(?)",
        [ledger.files(packing, "index")],
    )
    by_source: dict[str, int] = {}
    for shard in described["shards"]:
        by_source[shard["source"]] = by_source.get(shard["source"], 0) + shard["tokens"]
    names = ("vocabulary_size", "token_bytes", "tokenizer_digest")
    return {name: described[name] for name in names} | counted | {"by_source": by_source}


def _removed_samples(ledger: Ledger, samples: int, seed: int) -> list[Row]:
    """Some records for each reason; what was taken down is counted, and not shown."""
    lost = ledger.all_lost("id", "url", "source", "fate", "reason", "value", "excerpt")
    return ledger.rows(
        f"SELECT stage, fate, reason, source, url, id, value, left(excerpt, {EXCERPT_CHARACTERS}) AS excerpt "
        f"FROM ({lost}) WHERE reason != ? QUALIFY row_number() OVER (PARTITION BY stage, fate, reason "
        "ORDER BY sha256(? || id || source)) <= ? "
        "ORDER BY stage_order, fate, reason, sha256(? || id || source)",
        [REASON, f"{seed}:", samples, f"{seed}:"],
    )


def _sources(ledger: Ledger) -> list[Row]:
    settings = Settings.model_validate(ledger.run.settings)
    kept = {row["source"]: row for row in ledger.rows(_BY_SOURCE.format(_kept(ledger, "text", "source")))}
    total = sum(source.weight for source in settings.sources)
    return [
        {
            "name": source.name,
            "kind": source.kind,
            "dump": source.dump,
            "dataset": source.dataset,
            "revision": source.revision,
            "licence": source.licence,
            "weight": source.weight,
            "share_of_training_tokens": source.weight / total,
            "content": _content(ledger, source.name, "path", "revision"),
            "takedowns": _content(ledger, source.name, "takedown"),
            "documents": kept.get(source.name, {}).get("documents", 0),
            "text_bytes": kept.get(source.name, {}).get("text_bytes", 0),
        }
        for source in settings.sources
    ]


_BY_SOURCE = (
    "SELECT source, count(*) AS documents, sum(strlen(text))::BIGINT AS text_bytes FROM ({}) GROUP BY source"
)


def _content(ledger: Ledger, source: str, *kinds: str) -> list[Row]:
    """What names the content of a source: files with digests, the revision of a dataset, takedown lists."""
    first = next((n for n in ledger.stages if n.stage in FIRST_STAGES and n.label == source), None)
    inputs = ledger.store.manifest(first.output)["recipe"]["inputs"] if first else []
    return [part for part in inputs if isinstance(part, dict) and any(kind in part for kind in kinds)]
