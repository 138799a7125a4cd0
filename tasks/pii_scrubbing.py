"""PII scrubbing: e-mail and public IP addresses are replaced by reserved ones."""

from functools import partial

from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.pii_scrubbing import ScrubPii
from tasks.steps.shards import ReadShard, WriteShard
from tasks.store import StageOutput

STAGE = Stage("pii_scrubbing", "Scrub PII", version=2, libraries=("datatrove", "pyarrow"))


def scrub_pii(run: Run, documents: StageOutput) -> StageOutput:
    """The documents with addresses replaced, except those of sources that leave this stage out."""
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
    steps = [ReadShard(shards), ScrubPii(work.settings, skip), WriteShard(str(work.folder))]
    return work.run_shards(steps, tasks=len(shards))
