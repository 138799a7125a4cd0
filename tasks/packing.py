"""Packing: token shards of the training and validation split, and the table that describes them."""

from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from tokenizers import Tokenizer

from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.bpe_training import END_OF_DOCUMENT
from tasks.steps.packing import PackTokens, token_bytes
from tasks.steps.shards import ReadShard
from tasks.store import StageOutput, write_json

STAGE = Stage("packing", "Pack tokens", version=1, libraries=("datatrove", "pyarrow", "tokenizers"))


def pack_tokens(run: Run, corpus: StageOutput, tokenizer: StageOutput) -> StageOutput:
    """Token shards (`tokens/`), whose tokens are where (`index/`), and `tokens.json` for the trainer."""
    return run.stage(
        STAGE,
        partial(_build, tokenizer=tokenizer),
        run.settings.packing,
        label="all",
        inputs=[corpus, tokenizer],
    )


def _build(work: Work, tokenizer: StageOutput) -> Report:
    path = str(work.store.path(tokenizer) / "tokenizer" / "tokenizer.json")
    shards = work.shards(work.inputs[0])
    names = [Path(shard).stem for shard in shards]
    report = work.run_shards(
        [ReadShard(shards), PackTokens(names, str(work.folder), path, tokenizer.digest, work.settings)],
        tasks=len(shards),
    )
    vocabulary = Tokenizer.from_file(path)
    write_json(
        work.folder / "tokens.json",
        {
            "vocabulary_size": vocabulary.get_vocab_size(),
            "end_of_document": vocabulary.token_to_id(END_OF_DOCUMENT),
            "token_bytes": token_bytes(vocabulary.get_vocab_size()),
            "tokenizer_digest": tokenizer.digest,
            "shards": [shard for name in names if (shard := _describe(work.folder, name))],
        },
    )
    return report


def _describe(folder: Path, name: str) -> dict[str, str | int] | None:
    """A shard's line in `tokens.json`; None for a shard without documents."""
    index = pq.read_table(folder / "index" / f"{name}.parquet", columns=["source", "end_token"])
    if not len(index):
        return None
    return {
        "file": f"tokens/{name}.ds",
        "split": name.split("-")[0],
        "source": index["source"][0].as_py(),
        "documents": len(index),
        "tokens": index["end_token"][-1].as_py(),
    }
