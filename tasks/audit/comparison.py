"""Compare: which documents and tokens two corpora share, and what is responsible for the difference."""

from typing import Any

from tasks.audit.ledger import IDENTITY, Ledger, text_list
from tasks.records import flatten
from tasks.store import Store

Row = dict[str, Any]
RUN_SETTINGS = ("execution", "name")  # they change no byte


def compare(one: Ledger, other: Ledger) -> Row:
    """Documents and tokens in both corpora and in only one, with the stage and reason responsible."""
    return {
        "a": _names(one),
        "b": _names(other),
        "documents": _shared(one, other),
        "only_in_a": _responsible(one, other),
        "only_in_b": _responsible(other, one),
        "settings": differences(one.run.settings, other.run.settings),
        "versions": differences(versions(one.store, one), versions(other.store, other)),
    }


def _names(ledger: Ledger) -> Row:
    run = ledger.run
    corpus = ledger.stages[-1]
    return {"run": run.id, "name": run.name, "code": run.code, "key": corpus.key, "digest": corpus.digest}


def _kept(ledger: Ledger) -> str:
    """The ids of a corpus with their tokens, as SQL."""
    packing = ledger.run.last("packing")
    fates = f"SELECT * FROM ({ledger.fates(*IDENTITY)}) WHERE fate = 'kept'"
    kept = _numbered(fates, "file_path, warc_offset")
    files = ledger.files(packing, "index") if packing else []
    if not files:
        return f"SELECT id, source, copy, NULL AS tokens FROM ({kept})"
    index = _numbered(f"FROM read_parquet({text_list(files)}, filename = true)", "filename, start_token")
    return (
        "SELECT k.id, k.source, k.copy, i.token_count AS tokens "
        f"FROM ({kept}) k LEFT JOIN ({index}) i USING (id, source, copy)"
    )


def _numbered(relation: str, order: str) -> str:
    """A relation with `copy`, the number of a row among those of the same id and source, as SQL."""
    return f"SELECT *, row_number() OVER (PARTITION BY source, id ORDER BY {order}) AS copy FROM ({relation})"


def _shared(one: Ledger, other: Ledger) -> Row:
    (row,) = one.rows(
        f"WITH a AS ({_kept(one)}), b AS ({_kept(other)}) "
        "SELECT count(*) FILTER (a.id IS NOT NULL AND b.id IS NOT NULL) AS in_both, "
        "count(*) FILTER (b.id IS NULL) AS only_in_a, count(*) FILTER (a.id IS NULL) AS only_in_b, "
        "sum(a.tokens) FILTER (b.id IS NOT NULL) AS tokens_in_both_as_in_a, "
        "sum(b.tokens) FILTER (a.id IS NOT NULL) AS tokens_in_both_as_in_b, "
        "sum(a.tokens) FILTER (b.id IS NULL) AS tokens_only_in_a, "
        "sum(b.tokens) FILTER (a.id IS NULL) AS tokens_only_in_b "
        "FROM a FULL JOIN b ON a.id = b.id AND a.source = b.source AND a.copy = b.copy"
    )
    return {name: int(value) if value is not None else None for name, value in row.items()}


def _responsible(having: Ledger, lacking: Ledger) -> list[Row]:
    """Where the corpus that lacks documents lost them."""
    rows = having.rows(
        f"WITH missing AS (SELECT h.* FROM ({_kept(having)}) h ANTI JOIN ({_kept(lacking)}) l "
        "ON h.id = l.id AND h.source = l.source AND h.copy = l.copy), "
        f"fates AS ({lacking.fates('id', 'source')}), "
        "lost AS (SELECT DISTINCT ON (id, source) * FROM fates WHERE fate != 'kept') "
        "SELECT coalesce(lost.stage, 'not read') AS stage, coalesce(lost.reason, '') AS reason, "
        "count(*) AS documents, sum(missing.tokens) AS tokens "
        "FROM missing LEFT JOIN lost ON missing.id = lost.id AND missing.source = lost.source "
        "GROUP BY 1, 2 ORDER BY documents DESC, 1, 2"
    )
    return [row | {"tokens": int(row["tokens"]) if row["tokens"] is not None else None} for row in rows]


def differences(one: Row, other: Row) -> list[Row]:
    """The names whose values differ, with both values."""
    flat_one, flat_other = flatten(_by_name(one)), flatten(_by_name(other))
    names = sorted(flat_one.keys() | flat_other.keys())
    return [
        {"name": name, "a": flat_one.get(name), "b": flat_other.get(name)}
        for name in names
        if flat_one.get(name) != flat_other.get(name) and name.split(".")[0] not in RUN_SETTINGS
    ]


def _by_name(settings: Row) -> Row:
    """Settings with the sources by their name instead of their place."""
    sources = settings.get("sources")
    if not isinstance(sources, list):
        return settings
    return settings | {"sources": {source["name"]: source for source in sources}}


def versions(store: Store, ledger: Ledger) -> Row:
    """Versions of each stage of a run and of the libraries that decide its output."""
    found: Row = {}
    for node in ledger.run.nodes:
        recipe = store.manifest(node.output)["recipe"]
        found[node.stage] = {"version": recipe["version"], **recipe["libraries"]}
    return found
