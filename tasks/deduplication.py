"""MinHash deduplication across all sources; the first document of each cluster stays."""

from collections.abc import Sequence
from functools import partial

from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.deduplication import FindClusters, RemoveDuplicates, WriteSignatures
from tasks.steps.shards import ReadShard, WriteShard
from tasks.store import StageOutput

STAGE = Stage(
    "deduplication",
    "Remove duplicates",
    version=2,
    libraries=("datasketch", "datatrove", "numpy", "pyarrow", "scipy", "spacy", "xxhash"),
)


def remove_duplicates(run: Run, documents: Sequence[StageOutput]) -> StageOutput:
    """The documents of all sources without near-duplicates; `clusters/` says which went for which.

    Sources whose settings leave this stage out pass through it unchanged.
    """
    takes_part = {source.name: "deduplication" in source.stages for source in run.settings.sources}
    return run.stage(
        STAGE,
        partial(_build, takes_part=[takes_part[output.label] for output in documents]),
        run.settings.deduplication,
        label="all",
        inputs=documents,
        content=[takes_part[output.label] for output in documents],
    )


def _build(work: Work, takes_part: list[bool]) -> Report:
    shards = work.shards()
    compared = [
        part for output, part in zip(work.inputs, takes_part, strict=True) for _ in work.shards(output)
    ]
    scratch = work.folder / "scratch"
    clusters = work.folder / "clusters" / "clusters.parquet"
    work.run_steps(
        [ReadShard(shards), WriteSignatures(str(scratch), work.settings, compared)],
        tasks=len(shards),
        name="signatures",
    )
    signatures = [str(path) for path in sorted((scratch / "signatures").glob("part-*.parquet"))]
    find = FindClusters(signatures, str(clusters), work.settings)
    work.run_steps([find], tasks=1, name="clusters", counted=False)
    return work.run_shards(
        [ReadShard(shards), RemoveDuplicates(str(clusters)), WriteShard(str(work.folder))], tasks=len(shards)
    )
