"""Quality heuristics: Gopher repetition, Gopher quality, C4, FineWeb."""

from pipeline_config.settings import Source
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.quality_filtering import FilterQuality
from tasks.steps.shards import ReadShard, WriteShard
from tasks.store import StageOutput

STAGE = Stage("quality_filtering", "Filter quality", version=2, libraries=("datatrove", "pyarrow", "spacy"))


def filter_quality(run: Run, source: Source, documents: StageOutput) -> StageOutput:
    """The documents that break none of the rules."""
    return run.stage(STAGE, _build, run.settings.quality_filtering, label=source.name, inputs=[documents])


def _build(work: Work) -> Report:
    shards = work.shards()
    steps = [ReadShard(shards), FilterQuality(work.settings), WriteShard(str(work.folder))]
    return work.run_shards(steps, tasks=len(shards))
