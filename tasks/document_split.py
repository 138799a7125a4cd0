"""Document-level split: `documents/train-*.parquet` and `documents/validation-*.parquet`."""

from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.document_split import TRAIN, VALIDATION, SplitRoute
from tasks.steps.shards import ReadShard, WriteShard
from tasks.store import StageOutput

STAGE = Stage("document_split", "Split documents", version=2, libraries=("pyarrow",))


def split_documents(run: Run, documents: StageOutput) -> StageOutput:
    """The corpus in two disjoint sets of documents, in Parquet files that `datasets` loads as splits."""
    return run.stage(STAGE, _build, run.settings.document_split, label="all", inputs=[documents])


def _build(work: Work) -> Report:
    shards = work.shards()
    writer = WriteShard(str(work.folder), route=SplitRoute(work.settings), routes=(TRAIN, VALIDATION))
    return work.run_shards([ReadShard(shards), writer], tasks=len(shards))
