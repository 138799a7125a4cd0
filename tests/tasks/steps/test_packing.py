"""Packing: every token is some document's, and every document's tokens decode to its text."""

import json
import struct

import numpy as np
import pyarrow.parquet as pq
import pytest
from datatrove.data import Document
from datatrove.pipeline.tokens.merger import load_doc_ends
from tokenizers import Tokenizer, models

from pipeline_config.errors import StageError
from pipeline_config.settings import BpeTraining, Packing
from tasks.steps.bpe_training import END_OF_DOCUMENT, train_tokenizer
from tasks.steps.packing import PackTokens, load_tokenizer, token_bytes
from tasks.store import file_digest

GOLDEN = "01fece1aaa86c5193f2ba8692f8a5377020eca7974db4b7dd1daa51fd487f637"


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory, prose) -> str:
    path = str(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    train_tokenizer(iter([prose(60)]), BpeTraining(vocabulary_size=400)).save(path)
    return path


@pytest.fixture(scope="module")
def texts(prose) -> list[str]:
    return [
        prose(5),
        "",
        f"spells {END_OF_DOCUMENT} out",
        "ünïcode 👍",
        *(prose(2, seed=n) for n in range(9)),
    ]


@pytest.fixture
def pack(tmp_path, run_step, tokenizer_path):
    """Packs texts and returns the folder."""

    def run(texts: list[str], folder: str = "out", path: str = "", batch: int = 4):
        (tmp_path / folder).mkdir()
        made = [Document(text=text, id=f"id-{n}", metadata={"source": "web"}) for n, text in enumerate(texts)]
        settings = Packing(batch_documents=batch)
        step = PackTokens(["train-00000"], str(tmp_path / folder), path or tokenizer_path, "abc", settings)
        assert run_step(step, made) == made
        return tmp_path / folder

    return run


def tokens_of(folder, dtype: str = "<u2") -> np.ndarray:
    return np.fromfile(folder / "tokens/train-00000.ds", dtype=dtype)


def index_of(folder) -> list[dict]:
    return pq.read_table(folder / "index/train-00000.parquet").to_pylist()


def test_the_spans_of_the_index_cover_all_tokens_once(pack, texts):
    folder = pack(texts)
    index = index_of(folder)
    assert [row["id"] for row in index] == [f"id-{n}" for n in range(len(texts))]
    edges = [0, *(row["end_token"] for row in index)]
    assert [row["start_token"] for row in index] == edges[:-1]
    assert edges[-1] == len(tokens_of(folder))


def test_a_span_is_the_text_and_the_end_of_document_token(pack, texts, tokenizer_path):
    folder, tokenizer = pack(texts), load_tokenizer(tokenizer_path)
    tokens = tokens_of(folder)
    for row, text in zip(index_of(folder), texts, strict=True):
        *ids, end = tokens[row["start_token"] : row["end_token"]].tolist()
        assert end == tokenizer.token_to_id(END_OF_DOCUMENT) == 0
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert row["token_count"] == len(ids)
        assert row["source"] == "web"


def test_the_end_of_document_token_stands_only_between_documents(pack, texts):
    folder = pack(texts)
    ends = np.flatnonzero(tokens_of(folder) == 0) + 1
    assert ends.tolist() == [row["end_token"] for row in index_of(folder)]


def test_datatrove_reads_the_same_documents(pack, texts):
    folder = pack(texts)
    with (folder / "tokens/train-00000.ds.index").open("rb") as file:
        assert load_doc_ends(file).tolist() == [row["end_token"] for row in index_of(folder)]
    assert (folder / "tokens/train-00000.ds.metadata").read_text().startswith("sha256:abc|2\n")


def test_the_books_count_documents_and_tokens(pack, texts):
    folder = pack(texts)
    books = json.loads((folder / "shards/00000.json").read_text())
    assert (books["read"], books["kept"]) == (len(texts), len(texts))
    assert books["measures"] == {"tokens": len(tokens_of(folder))}


@pytest.mark.parametrize("batch", [1, 3, 13, 1000])
def test_the_size_of_a_batch_changes_no_byte(pack, texts, batch):
    one, other = pack(texts, "one"), pack(texts, "other", batch=batch)
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert len(files) == 5
    assert [file_digest(one / name) for name in files] == [file_digest(other / name) for name in files]


def test_no_documents_make_an_empty_shard(pack):
    folder = pack([])
    assert (len(tokens_of(folder)), index_of(folder)) == (0, [])


def test_a_shard_that_mixes_sources_is_refused(tmp_path, run_step, tokenizer_path):
    mixed = [Document(text="a", id=name, metadata={"source": name}) for name in ("web", "books")]
    with pytest.raises(StageError, match="shard s mixes the sources web and books"):
        run_step(PackTokens(["s"], str(tmp_path), tokenizer_path, "abc", Packing()), mixed)


@pytest.mark.parametrize(("entries", "width"), [(257, 2), (65_536, 2), (65_537, 4)])
def test_a_token_takes_two_bytes_while_ids_fit(entries, width):
    assert token_bytes(entries) == width
    struct.pack("<H" if width == 2 else "<I", entries - 1)


def test_a_large_vocabulary_is_packed_in_four_bytes(tmp_path, pack):
    vocabulary = {END_OF_DOCUMENT: 0, **{chr(0x10000 + n): n for n in range(1, 70_000)}}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.save(str(tmp_path / "large.json"))
    folder = pack([chr(0x10000 + 69_999) + chr(0x10000 + 1)], path=str(tmp_path / "large.json"))
    assert tokens_of(folder, "<u4").tolist() == [69_999, 1, 0]


def test_golden(pack, texts):
    folder = pack(texts)
    assert file_digest(folder / "tokens/train-00000.ds") == GOLDEN, (
        "behaviour changed: raise the version in tasks/packing.py"
    )
