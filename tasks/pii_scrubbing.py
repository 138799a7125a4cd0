"""PII scrubbing: what identifies a person is replaced by reserved values and tokens."""

from functools import partial

from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.pii_scrubbing import NOTE_FIELDS, ScrubPii
from tasks.steps.shards import ReadShard, WriteShard
from tasks.store import StageOutput

LIBRARIES = ("datatrove", "phonenumbers", "pyarrow", "python-stdnum")
STAGE = Stage("pii_scrubbing", "Scrub PII", version=3, libraries=LIBRARIES)


def scrub_pii(run: Run, documents: StageOutput) -> StageOutput:
    """The documents with personal values replaced, except those of sources that leave this stage out."""
    skip = frozenset(s.name for s in run.settings.sources if "pii_scrubbing" not in s.stages)
    return run.stage(
        STAGE,
        partial(_build, skip=skip),
        run.settings.pii_scrubbing,
        label="all",
        inputs=[documents],
        content=sorted(skip),
    )


def _build(work: Work, skip: frozenset[str]) -> Report:
    shards = work.shards()
    writer = WriteShard(str(work.folder), notes=NOTE_FIELDS)
    steps = [ReadShard(shards), ScrubPii(work.settings, skip), writer]
    return work.run_shards(steps, tasks=len(shards))
