"""Common Crawl's columnar index: its rows as pointers to records, and the choice among them.

Source of the columns: Common Crawl's index table, `cc-index/table/cc-main/warc` (schema of 2024). Only those
that are needed are fetched, a row group at a time.
"""

import datetime
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.data import Document

from pipeline_config.errors import SourceError, error_kind, may_pass
from pipeline_config.settings import IndexFilter
from tasks.steps.shards import FATE, NOTES, DecidingStep, Fate, ReadShard, failed, removed

PLACE = ("warc_filename", "warc_record_offset", "warc_record_length")
NEEDED = ("url", *PLACE)
USEFUL = (
    "fetch_time",
    "fetch_status",
    "content_digest",
    "content_mime_type",
    "content_mime_detected",
    "content_languages",
)
REVISIT_TYPE = "warc/revisit"  # the media type of records that say "as before"
INDEX_NOTES = (pa.field("languages", pa.string()),)
ROWS_AT_A_TIME = 10_000


def read_index(uri: str) -> Iterator[dict[str, Any]]:
    """The rows of one file of the index, of each row group in the order of the records in their files.

    Raises:
        SourceError: the file is missing, no Parquet, damaged, or without the columns of the index.
        UnreachableError: the storage does not answer.
    """
    try:
        # without read-ahead: what pyarrow asks for is what is fetched
        with fsspec.open(uri, "rb", cache_type="none").open() as file, _table(file) as table:
            columns = _columns(table.schema_arrow, uri)
            for group in range(table.num_row_groups):
                rows = table.read_row_group(group, columns=columns)
                order = [(name, "ascending") for name in (*PLACE, "url")]
                for batch in rows.sort_by(order).to_batches(ROWS_AT_A_TIME):
                    yield from batch.to_pylist()
    except FileNotFoundError as error:
        raise error_kind(error)(f"there is no file {uri}") from None
    except (pa.ArrowException, OSError) as error:
        if may_pass(error) or (isinstance(error, OSError) and error.errno):
            raise error_kind(error)(f"cannot reach {uri}: {error!r}") from None
        raise SourceError(f"{uri} is no Parquet file, or a damaged one: {error}. Fetch it again") from None


def _table(file: Any) -> pq.ParquetFile:
    return pq.ParquetFile(file, pre_buffer=True)


def _columns(schema: pa.Schema, uri: str) -> list[str]:
    missing = [name for name in NEEDED if name not in schema.names]
    if missing:
        raise SourceError(
            f"{uri} is no file of Common Crawl's index: it has no column {', '.join(missing)}. "
            "Name files of `cc-index/table/cc-main/warc`"
        )
    return [name for name in (*NEEDED, *USEFUL) if name in schema.names]


class ReadIndex(ReadShard):
    """Yields the rows of an index file as pointers; the index has no ids, so place and offset make one."""

    name = "index"

    def __init__(self, shards: Sequence[str], source: str, dump: str):
        super().__init__(shards)
        self.fields = {"source": source, "dump": dump}

    def read(self, shard: str) -> Iterator[Document]:
        for number, row in enumerate(read_index(shard)):
            yield _pointer(row, self.fields, f"{shard.rpartition('/')[2]}#{number}")


def _pointer(row: dict[str, Any], fields: dict[str, str], where: str) -> Document:
    name, offset, length = (row[column] for column in PLACE)
    is_place = isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)
    is_place = is_place and bool(name) and offset >= 0 and length > 0
    mime = row.get("content_mime_detected") or row.get("content_mime_type")
    time, digest, status = row.get("fetch_time"), row.get("content_digest"), row.get("fetch_status")
    pointer = {
        "url": _text(row["url"]),
        "date": _date(time),
        "payload_digest": f"sha1:{digest}" if isinstance(digest, str) and digest else None,
        "payload_type": _text(mime),
        "record_type": "revisit" if row.get("content_mime_type") == REVISIT_TYPE else "response",
        "file_path": name if is_place else None,
        "warc_offset": offset if is_place else None,
        "warc_length": length if is_place else None,
        NOTES: {
            "http_status": status if isinstance(status, int) else None,
            "mime": _text(row.get("content_mime_type")),
            "languages": _text(row.get("content_languages")),
        },
    }
    if not is_place:
        shown = " ".join(map(str, (name, offset, length)))
        pointer[FATE] = failed("bad_index_row", f"row {where} names no record: {shown}")
    identity = f"{name}#{offset}" if is_place else where
    return Document(
        text="", id=identity, metadata={k: v for k, v in pointer.items() if v is not None} | fields
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _date(value: Any) -> str:
    if not isinstance(value, datetime.datetime):
        return value if isinstance(value, str) else ""
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC)
    return value.strftime("%Y-%m-%dT%H:%M:%SZ")


class FilterIndex(DecidingStep):
    """Decides by what the index says of a record: status, media type, languages."""

    name = "index filter"

    def __init__(self, chosen: IndexFilter):
        super().__init__()
        self.chosen = chosen

    def decide(self, document: Document) -> Fate | None:
        notes, chosen = document.metadata[NOTES], self.chosen
        status, languages = notes["http_status"], notes["languages"]
        if chosen.statuses and status not in chosen.statuses:
            return removed("index_status", status)
        mime = document.metadata.get("payload_type")
        if chosen.mimes and mime not in chosen.mimes:
            return removed("index_mime", mime)
        if chosen.languages and not languages and not chosen.keep_unknown_language:
            return removed("index_language", "unknown")
        if chosen.languages and languages and not set(languages.split(",")) & set(chosen.languages):
            return removed("index_language", languages)
        return None
