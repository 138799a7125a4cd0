"""Byte-level BPE with GPT-4-style pre-tokenization, as a Hugging Face `tokenizer.json`."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from pipeline_config.settings import BpeTraining
from tasks.steps.shards import ShardCounts, join_parent, read_documents, removed

END_OF_DOCUMENT = "<|endoftext|>"
# Splits as GPT-4's tokenizer does, without its possessive quantifiers (they only change speed).
# Source: openai/tiktoken, tiktoken_ext/openai_public.py, cl100k_base.
PRE_TOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterator[str], settings: BpeTraining) -> Tokenizer:
    """A tokenizer whose merges are learned from the texts; id 0 is `<|endoftext|>`, 1-256 are the bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocabulary_size,
        min_frequency=settings.min_frequency,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def is_sampled(identity: str, share: float) -> bool:
    """Whether a document belongs to the share of all documents that is trained on."""
    digest = hashlib.sha256(f"bpe:{identity}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < share


class TrainBpe(PipelineStep):
    """Trains on all shards of the training split, and writes `tokenizer/tokenizer.json`."""

    type, name = "TOKENIZER", "BPE training"

    def __init__(self, shards: Sequence[str], folder: str, settings: BpeTraining, share: float):
        super().__init__()
        self.shards = list(shards)
        self.folder = folder
        self.settings = settings
        self.share = share

    def run(self, data: None = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        join_parent()
        counts = ShardCounts()
        tokenizer = train_tokenizer(self._texts(counts), self.settings)
        counts.measures["vocabulary_size"] = tokenizer.get_vocab_size()
        folder = Path(self.folder)
        (folder / "tokenizer").mkdir(exist_ok=True)
        tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
        counts.write(folder / "shards" / "00000.json")
        yield from ()

    def _texts(self, counts: ShardCounts) -> Iterator[str]:
        for shard in self.shards:
            for document in read_documents(shard):
                sampled = is_sampled(document.id, self.share)
                counts.add(None if sampled else removed("not_sampled"), document)
                if sampled:
                    yield document.text
