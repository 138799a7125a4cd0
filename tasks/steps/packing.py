"""Packing: documents to token shards in DataTrove's format, with an index of whose tokens are where."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from tokenizers import Tokenizer

from pipeline_config.errors import StageError
from pipeline_config.settings import Packing
from tasks.steps.bpe_training import END_OF_DOCUMENT
from tasks.steps.shards import ShardCounts, TableWriter

INDEX_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("start_token", pa.int64()),
        ("end_token", pa.int64()),
        ("token_count", pa.int64()),
    ]
)


def load_tokenizer(path: str) -> Tokenizer:
    """A tokenizer that reads text as text: a document that spells a special token gets ordinary tokens."""
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    return tokenizer


class PackTokens(PipelineStep):
    """Writes `tokens/<shard>.ds` (with DataTrove's .index and .metadata) and `index/<shard>.parquet`.

    Every document is followed by the end-of-document token; a shard holds documents of one source.
    """

    type, name = "TOKENIZER", "packing"

    def __init__(self, names: list[str], folder: str, tokenizer: str, digest: str, settings: Packing):
        super().__init__()
        self.names = names
        self.folder = folder
        self.tokenizer_path = tokenizer
        self.digest = digest
        self.settings = settings

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        tokenizer = load_tokenizer(self.tokenizer_path)
        end = tokenizer.token_to_id(END_OF_DOCUMENT)
        folder, name, counts = Path(self.folder), self.names[rank], ShardCounts()
        (folder / "tokens").mkdir(exist_ok=True)
        shard = TokenizedFile(
            str(folder / "tokens"),
            f"{name}.ds",
            save_final_metadata=True,
            tokenizer_name_or_path=f"sha256:{self.digest}",
            token_size=token_bytes(tokenizer.get_vocab_size()),
        )
        index = TableWriter(folder / "index" / f"{name}.parquet", INDEX_SCHEMA)
        source = None
        for documents in iter(lambda: list(islice(data, self.settings.batch_documents)), []):
            encoded = tokenizer.encode_batch_fast([document.text for document in documents])
            for document, encoding in zip(documents, encoded, strict=True):
                source = self._only_source(source, document, name)
                start = len(shard)
                shard.write([*encoding.ids, end], None)
                index.add(
                    {
                        "id": document.id,
                        "source": source,
                        "start_token": start,
                        "end_token": len(shard),
                        "token_count": len(encoding.ids),
                    }
                )
                counts.add(None, document)
                counts.measures["tokens"] += len(shard) - start
                yield document
        shard.close()
        index.close()
        counts.write(folder / "shards" / f"{rank:05d}.json")

    def _only_source(self, source: str | None, document: Document, name: str) -> str:
        found = document.metadata["source"]
        if source not in (None, found):
            raise StageError(f"shard {name} mixes the sources {source} and {found}")
        return found


def token_bytes(vocabulary_size: int) -> int:
    """Bytes of a token id in a shard: 2 up to 65,536 entries, else 4 (DataTrove's rule)."""
    return 2 if vocabulary_size <= 2**16 else 4
