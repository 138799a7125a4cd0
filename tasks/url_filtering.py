"""URL filtering: from WARC files to a table of pointers to the records worth decoding."""

from functools import partial

from pipeline_config.settings import Source
from tasks.run import Run
from tasks.sources import SourceFile, origin_of, source_files, takedown_lists
from tasks.stage import Report, Stage, Work
from tasks.steps.record_pointers import POINTER_NOTES, ReadPointers
from tasks.steps.shards import POINTER_SCHEMA, WriteShard
from tasks.steps.takedown import TakeDown, TakedownList
from tasks.steps.url_filtering import URL_NOTES, FilterUrls
from tasks.steps.url_lists import UrlList
from tasks.store import StageOutput
from tasks.url_lists import find_lists, without_places

STAGE = Stage(
    "url_filtering",
    "Filter URLs",
    version=3,
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
        SourceError: a WARC file is missing or empty, or holds no record.
    """
    files = warc_files(run, source, crawl)
    content = [{"path": file.path, "content": file.identity} for file in files]
    settings = run.settings.url_filtering
    taken, lists = run.patiently(takedown_lists, source), run.patiently(find_lists, settings)
    return run.stage(
        STAGE,
        partial(_build, source=source, files=files, taken=taken, lists=lists),
        without_places(settings),
        label=source.name,
        inputs=[crawl] if crawl else [],
        content=[
            {"source": source.name, "dump": source.dump},
            *content,
            *(found.facts for found in (*taken, *lists)),
        ],
        origin=None if crawl else origin_of(source, content),
    )


def warc_files(run: Run, source: Source, crawl: StageOutput | None) -> list[SourceFile]:
    """The WARC files of a source, or of the crawl that was made for it."""
    if crawl is not None:
        source = source.model_copy(update={"base": str(run.store.path(crawl)), "uris": CRAWL_FILES})
    return run.patiently(source_files, source, run.store)


def _build(
    work: Work,
    source: Source,
    files: list[SourceFile],
    taken: list[TakedownList],
    lists: tuple[UrlList, ...],
) -> Report:
    reader = ReadPointers([f.uri for f in files], [f.path for f in files], source.name, source.dump)
    decide = FilterUrls(work.settings, lists)
    decide.prepare()  # once, before the workers that use it
    writer = WriteShard(str(work.folder), POINTER_SCHEMA, notes=[*POINTER_NOTES, *URL_NOTES])
    steps = [reader, TakeDown(taken), decide, writer]
    return work.run_shards(steps, tasks=len(files))
