"""BPE training: a tokenizer from the training split."""

from functools import partial

from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.bpe_training import TrainBpe
from tasks.steps.document_split import TRAIN
from tasks.store import StageOutput

STAGE = Stage(
    "bpe_training", "Train tokenizer", version=1, libraries=("tokenizers",), artifacts=("tokenizer",)
)


def train_tokenizer(run: Run, corpus: StageOutput) -> StageOutput:
    """`tokenizer/tokenizer.json`, learned from the training documents only."""
    total_bytes = max(1, run.store.report(corpus)["text_bytes"])
    share = min(1.0, run.settings.bpe_training.max_training_bytes / total_bytes)
    return run.stage(
        STAGE,
        partial(_build, share=share),
        run.settings.bpe_training,
        label="all",
        inputs=[corpus],
    )


def _build(work: Work, share: float) -> Report:
    shards = work.shards(pattern=f"{TRAIN}-*.parquet")
    return work.run_shards([TrainBpe(shards, str(work.folder), work.settings, share)], tasks=1, counted=False)
