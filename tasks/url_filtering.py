"""URL filtering: from WARC files, or their index, to a table of pointers to the records worth decoding."""

from functools import partial

import pyarrow.parquet as pq

from pipeline_config.settings import Source
from tasks.run import Run
from tasks.sources import SourceFile, identified, origin_of, source_files, takedown_lists
from tasks.stage import Report, Stage, Work
from tasks.steps.shards import POINTER_SCHEMA, WriteShard
from tasks.steps.takedown import TakeDown, TakedownList
from tasks.steps.url_filtering import URL_NOTES, FilterUrls
from tasks.steps.urls.crawl_index import INDEX_NOTES, FilterIndex, ReadIndex
from tasks.steps.urls.lists import UrlList
from tasks.steps.warc.pointers import POINTER_NOTES, ReadPointers
from tasks.store import StageOutput
from tasks.url_lists import find_lists, without_places

STAGE = Stage(
    "url_filtering",
    "Filter URLs",
    version=4,
    libraries=(
        "datatrove",
        "deflate",
        "fastwarc",
        "google-re2",
        "idna",
        "pyarrow",
        "tldextract",
        "zstandard",
    ),
)

CRAWL_FILES = ("warc/*.warc.gz",)


def filter_urls(run: Run, source: Source, crawl: StageOutput | None = None) -> StageOutput:
    """Pointers (file, offset, length, URL, date, digest) to the pages of a source that are worth decoding.

    Args:
        crawl: output that holds the source's WARC files, for a source that was made here.

    Raises:
        SourceError: a file is missing or empty, or holds no record.
    """
    files = crawl_files(run, source, crawl)
    content = [{"path": file.path, "content": file.identity} for file in files]
    settings = run.settings.url_filtering
    taken, lists = run.patiently(takedown_lists, source), run.patiently(find_lists, settings)
    chosen = [{"index_filter": source.index_filter.model_dump(mode="json")}] if source.index else []
    return run.stage(
        STAGE,
        partial(_build, source=source, files=files, taken=taken, lists=lists),
        without_places(settings),
        label=source.name,
        inputs=[crawl] if crawl else [],
        content=[
            {"source": source.name, "dump": source.dump},
            *content,
            *chosen,
            *(found.facts for found in (*taken, *lists)),
        ],
        origin=None if crawl else origin_of(source, content),
    )


def crawl_files(run: Run, source: Source, crawl: StageOutput | None) -> list[SourceFile]:
    """The files that pointers are read from: a source's WARC files or index, or the crawl made for it."""
    if crawl is not None:
        source = source.model_copy(update={"base": str(run.store.path(crawl)), "uris": CRAWL_FILES})
    return run.patiently(source_files, source, run.store)


def warc_files(
    run: Run, source: Source, pointers: StageOutput, crawl: StageOutput | None = None
) -> list[SourceFile]:
    """The WARC files that pointers point into; of a source with an index, only those."""
    if not source.index:
        return crawl_files(run, source, crawl)
    tables = sorted((run.store.path(pointers) / "documents").glob("*.parquet"))
    names = {name for path in tables for name in pq.read_table(path, columns=["file_path"])[0].to_pylist()}
    return run.patiently(identified, source, sorted(names), run.store)


def _build(
    work: Work,
    source: Source,
    files: list[SourceFile],
    taken: list[TakedownList],
    lists: tuple[UrlList, ...],
) -> Report:
    uris, paths = [file.uri for file in files], [file.path for file in files]
    decide = FilterUrls(work.settings, lists)
    decide.prepare()  # once, before the workers that use it
    notes = [*POINTER_NOTES, *URL_NOTES]
    if source.index:
        read = [ReadIndex(uris, source.name, source.dump), FilterIndex(source.index_filter)]
        notes += INDEX_NOTES
    else:
        read = [ReadPointers(uris, paths, source.name, source.dump)]
    writer = WriteShard(str(work.folder), POINTER_SCHEMA, notes=notes)
    return work.run_shards([*read, TakeDown(taken), decide, writer], tasks=len(files))
