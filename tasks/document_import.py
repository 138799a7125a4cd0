"""Import of texts that exist already: they enter the pipeline where extracted pages do."""

from functools import partial

from pipeline_config.settings import Source
from tasks.run import Run
from tasks.sources import SourceFile, dataset_identity, origin_of, source_files, takedown_lists
from tasks.stage import Report, Stage, Work
from tasks.steps.document_import import ReadDocuments, reader_of
from tasks.steps.shards import WriteShard
from tasks.steps.takedown import TakeDown, TakedownList
from tasks.store import StageOutput

STAGE = Stage("document_import", "Import documents", version=2, libraries=("datasets", "orjson", "pyarrow"))


def import_documents(run: Run, source: Source) -> StageOutput:
    """The texts of a source of kind `documents`, with FineWeb's field names.

    Raises:
        SourceError: a file is missing, empty, or of a format that is not read.
    """
    files = run.patiently(source_files, source, run.store)
    for file in files:
        reader_of(file.uri)
    lists = run.patiently(takedown_lists, source)
    content = [
        dataset_identity(source, run.store) if source.dataset else {},
        *({"path": file.path, "content": file.identity} for file in files),
    ]
    return run.stage(
        STAGE,
        partial(_build, source=source, files=files, lists=lists),
        source.fields,
        label=source.name,
        content=[{"source": source.name, "dump": source.dump}, *content, *(found.facts for found in lists)],
        origin=origin_of(source, content),
    )


def _build(work: Work, source: Source, files: list[SourceFile], lists: list[TakedownList]) -> Report:
    reader = ReadDocuments(source, [f.uri for f in files], [f.path for f in files])
    steps = [reader, TakeDown(lists), WriteShard(str(work.folder))]
    return work.run_shards(steps, tasks=len(reader.shards))
