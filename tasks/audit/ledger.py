"""The ledger of a run: its Parquet tables, asked with DuckDB where they lie.

Nothing is copied or loaded: a query reads the columns that it names. Every value that comes from outside
is a parameter of the query, never a part of its text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_config.environment import home
from pipeline_config.errors import AuditError
from tasks.lineage import Node, RunRecord
from tasks.steps.shards import ANNOTATION_SCHEMA, DOCUMENT_SCHEMA, REMOVED_SCHEMA
from tasks.store import Store

FIRST_STAGES = ("url_filtering", "document_import")  # where records enter
LAST_STAGE = "document_split"
STAGES = (
    *FIRST_STAGES,
    "text_extraction",
    "language_identification",
    "quality_filtering",
    "deduplication",
    "pii_scrubbing",
    LAST_STAGE,
)
IDENTITY = ("source", "id", "file_path", "warc_offset")
SQL_TYPES = {"string": "VARCHAR", "int64": "BIGINT", "double": "DOUBLE"}


class Ledger:
    """The tables of a run."""

    def __init__(self, run: RunRecord, store: Store):
        self.run = run
        self.store = store
        self.stages = [node for node in run.nodes if node.stage in STAGES]
        gone = [node.name for node in self.stages if not self.files(node, "removed")]
        if gone or not self.stages:
            raise AuditError(
                f"run {run.id} ({run.name}) has no tables below {store.root} of "
                f"{', '.join(gone) or 'any stage'}: its outputs were removed, or TOKENMILL_HOME is another "
                "folder than it was. Run it again"
            )
        self.database = connect()

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of a query."""
        result = self.database.execute(query, list(parameters))
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def node(self, stage: str, source: str | None = None) -> Node:
        """The node of a stage, for a source where a stage has one node for each.

        Raises:
            AuditError: the run has no such stage.
        """
        found = [node for node in self.stages if node.stage == stage]
        if not found:
            known = ", ".join(dict.fromkeys(node.stage for node in self.stages))
            raise AuditError(f"run {self.run.id} has no stage {stage!r} with a ledger; it has {known}")
        return next((node for node in found if node.label == source), found[0])

    def kept(self, node: Node, *columns: str) -> str:
        """A relation of what a stage kept, as SQL."""
        return self._relation(node, "documents", DOCUMENT_SCHEMA, columns)

    def lost(self, node: Node, *columns: str) -> str:
        """A relation of what a stage removed or failed on, as SQL."""
        return self._relation(node, "removed", REMOVED_SCHEMA, columns)

    def annotations(self, node: Node, *columns: str) -> str:
        """A relation of what a stage found out about every record that it read, as SQL."""
        return self._relation(node, "annotations", ANNOTATION_SCHEMA, columns)

    def all_lost(self, *columns: str) -> str:
        """What all stages removed or failed on, with `stage` and its place `stage_order`, as SQL."""
        parts = [
            f"SELECT {number} AS stage_order, {text(node.stage)} AS stage, * "
            f"FROM ({self.lost(node, *columns)})"
            for number, node in enumerate(self.stages)
        ]
        return " UNION ALL ".join(parts)

    def read(self, *columns: str) -> str:
        """All records that were read, as SQL."""
        first = [node for node in self.stages if node.stage in FIRST_STAGES]
        parts = [part for node in first for part in (self.kept(node, *columns), self.lost(node, *columns))]
        return " UNION ALL ".join(parts)

    def fates(self, *columns: str) -> str:
        """Every record with its one fate: the stage that removed it, or the split that it is in, as SQL.

        Columns: `stage_order`, `stage`, `fate`, `reason`, `value`, and those asked for.
        """
        names = ", ".join(columns)
        parts = [self.all_lost(*columns, "fate", "reason", "value")]
        inner = {name for node in self.stages for name in node.inputs}
        for node in self.stages:
            if node.name not in inner:  # what it kept went no further
                split = "split_part(parse_filename(filename), '-', 1)" if node.stage == LAST_STAGE else "''"
                parts.append(
                    f"SELECT {len(self.stages)}, {text(node.stage)}, {names}, 'kept', {split}, NULL "
                    f"FROM ({self.kept(node, *columns, 'filename')})"
                )
        return " UNION ALL ".join(parts)

    def find(
        self,
        node: Node,
        condition: str,
        parameters: Sequence[Any],
        table: str = "documents",
        most: int | None = None,
    ) -> list[dict[str, Any]]:
        """The first whole rows of a stage that meet a condition, with `file` and `row`, where they lie."""
        files = self.files(node, table)
        if not files:
            return []
        places = self.rows(
            "SELECT filename AS file, file_row_number AS row FROM "
            f"read_parquet({text_list(files)}, filename = true, file_row_number = true) WHERE {condition} "
            "ORDER BY file, row LIMIT ?",
            [*parameters, most],
        )
        return [row_at(place["file"], place["row"]) | place for place in places]

    def files(self, node: Node, table: str) -> list[str]:
        """The Parquet files of a table (`documents`, `removed`, `annotations`) of a stage, in order."""
        return [str(path) for path in sorted((self.store.path(node.output) / table).glob("*.parquet"))]

    def _relation(self, node: Node, table: str, schema: pa.Schema, columns: Sequence[str]) -> str:
        files = self.files(node, table)
        chosen = list(columns) or schema.names
        present = {*(pq.read_schema(files[0]).names if files else ()), "filename"}
        types = {field.name: SQL_TYPES[str(field.type)] for field in schema}
        names = ", ".join(n if n in present else f"NULL::{types.get(n, 'VARCHAR')} AS {n}" for n in chosen)
        if not files:
            return f"SELECT {names.replace('filename', 'NULL AS filename')} WHERE false"
        return f"SELECT {names} FROM read_parquet({text_list(files)}, filename = true)"


def connect() -> duckdb.DuckDBPyConnection:
    """An empty database in memory that loads no extension from anywhere."""
    config = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "temp_directory": str(home() / "cache" / "duckdb"),
    }
    return duckdb.connect(":memory:", config=config)


def text(value: str) -> str:
    """A text as a SQL literal. For names and paths of our own; values from outside are parameters."""
    return "'" + value.replace("'", "''") + "'"


def text_list(values: Sequence[str]) -> str:
    """Texts as a SQL list."""
    return f"[{', '.join(map(text, values))}]"


def row_at(path: str, number: int, columns: list[str] | None = None) -> dict[str, Any]:
    """A row of a Parquet file, by its number; only its row group is read."""
    with pq.ParquetFile(Path(path)) as file:
        left = number
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if left < rows:
                return file.read_row_group(group, columns).slice(left, 1).to_pylist()[0]
            left -= rows
    raise AuditError(f"{path} has no row {number}: it changed while it was read")
