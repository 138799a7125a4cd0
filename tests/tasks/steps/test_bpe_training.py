"""The tokenizer: lossless, reproducible, greedy by count, and safe from text that spells a special token."""

import itertools
import json
import random
import unicodedata
from collections import Counter

import pytest
import regex
from datatrove.data import Document
from tokenizers import Tokenizer

from pipeline_config.settings import BpeTraining
from tasks.steps.bpe_training import END_OF_DOCUMENT, TrainBpe, is_sampled, train_tokenizer
from tasks.steps.packing import load_tokenizer
from tasks.steps.shards import WriteShard
from tasks.store import digest_of

GOLDEN = "63bd12ef4e3760d0bd8d6629cb1d034057994571959b91371d20b3d2337cd74c"
# Source: openai/tiktoken, tiktoken_ext/openai_public.py, cl100k_base, as first published.
GPT4_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
ODD_TEXTS = [
    "",
    " ",
    "\r\n\r\n \t\x00\x7f",
    "a\u0301 é ﬁ \u200b\u200d\ufeff \u2028",
    "👩‍👩‍👧‍👦🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "日本語 العربية עברית हिन्दी",
    "\ud7ff\ue000\uffff\U0010ffff",
    f"{END_OF_DOCUMENT} x{END_OF_DOCUMENT}{END_OF_DOCUMENT}",
    "Ġthe Ċ Ã©",
    "it's IT'S we'LL 'ſ 1234567890 ½²③",
    "   three   spaces   ",
]


def random_texts(number: int) -> list[str]:
    """Without the characters that Python's Unicode tables do not know: libraries disagree on them."""
    choose = random.Random(3)
    known = "".join(chr(n) for n in range(0x2000) if unicodedata.category(chr(n)) != "Cn")
    pools = ["ab '\n\r\t 19é.", known, "👍日本 \u3000\U0001f468\u200d"]
    return ["".join(choose.choices(choose.choice(pools), k=choose.randrange(60))) for _ in range(number)]


@pytest.fixture(scope="module")
def trained(prose) -> Tokenizer:
    return train_tokenizer(iter([prose(60), prose(60, seed=1)]), BpeTraining(vocabulary_size=400))


@pytest.fixture(scope="module")
def loaded(trained, tmp_path_factory) -> Tokenizer:
    """The same tokenizer as the packing stage reads it."""
    path = str(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    trained.save(path)
    return load_tokenizer(path)


def merges_of(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_text_comes_back_as_it_was(loaded, text):
    ids = loaded.encode(text).ids
    assert loaded.decode(ids, skip_special_tokens=False) == text


def test_any_text_comes_back_as_it_was(loaded):
    texts = random_texts(500)
    encoded = [encoding.ids for encoding in loaded.encode_batch_fast(texts)]
    assert loaded.decode_batch(encoded, skip_special_tokens=False) == texts


def test_ids_are_the_special_token_the_bytes_and_the_merges(trained):
    vocabulary = sorted(trained.get_vocab().items(), key=lambda entry: entry[1])
    assert [number for _, number in vocabulary] == list(range(400))
    assert vocabulary[0] == (END_OF_DOCUMENT, 0)
    assert all(len(token) == 1 for token, _ in vocabulary[1:257])
    assert [token for token, _ in vocabulary[257:]] == ["".join(merge) for merge in merges_of(trained)]


def test_text_that_spells_the_special_token_never_becomes_it(loaded, trained):
    for text in ODD_TEXTS:
        assert 0 not in loaded.encode(text).ids
    assert 0 in trained.encode(END_OF_DOCUMENT).ids  # which is why the stage loads it with care


def test_the_same_texts_make_the_same_tokenizer(prose, trained):
    again = train_tokenizer(iter([prose(60), prose(60, seed=1)]), BpeTraining(vocabulary_size=400))
    assert again.to_str() == trained.to_str()


def test_the_merges_of_a_known_text_are_the_expected_ones():
    """1,300 of each pair in ' the'; then 200 of 'r'+'e' and of ' the'+'r'; then 100 of each in 'ory'."""
    text = " the" * 1000 + " there" * 200 + " theory" * 100
    tokenizer = train_tokenizer(iter([text]), BpeTraining(vocabulary_size=257 + 5))
    merges = merges_of(tokenizer)
    assert {"".join(merge) for merge in merges[:3]} >= {"Ġthe"}
    assert {"".join(merge) for merge in merges[3:]} in ({"re", "Ġthere"}, {"Ġther", "Ġthere"})
    assert tokenizer.encode(" the there theory").tokens == ["Ġthe", "Ġthere", "Ġthe", "o", "r", "y"]


def replayed_counts(tokenizer: Tokenizer, texts: list[str]) -> list[tuple[int, int]]:
    """Of each merge: how often its pair occurred when it was chosen, and the most frequent pair's count."""
    words = Counter(word for text in texts for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    split, counts = {word: list(word) for word in words}, []
    for merge in merges_of(tokenizer):
        pairs = Counter()
        for word, parts in split.items():
            for pair in itertools.pairwise(parts):
                pairs[pair] += words[word]
        counts.append((pairs[merge], max(pairs.values())))
        split = {word: joined(parts, merge) for word, parts in split.items()}
    return counts


def joined(parts: list[str], merge: tuple[str, str]) -> list[str]:
    made: list[str] = []
    for part in parts:
        if made and (made[-1], part) == merge:
            made[-1] += part
        else:
            made.append(part)
    return made


def test_every_merge_is_of_the_most_frequent_pair(trained, prose):
    counts = replayed_counts(trained, [prose(60), prose(60, seed=1)])
    assert len(counts) == 400 - 257
    assert [chosen for chosen, _ in counts] == [most for _, most in counts]


def test_pairs_below_the_minimum_are_not_merged(prose):
    texts = [prose(20)]
    settings = BpeTraining(vocabulary_size=5000, min_frequency=4)
    tokenizer = train_tokenizer(iter(texts), settings)
    assert min(chosen for chosen, _ in replayed_counts(tokenizer, texts)) >= 4
    assert tokenizer.get_vocab_size() < 5000


def test_text_is_split_as_gpt_4_splits_it(loaded):
    texts = [*ODD_TEXTS, *random_texts(500)]
    for text in texts:
        spans = [span for _, span in loaded.pre_tokenizer.pre_tokenize_str(text)]
        assert [text[start:end] for start, end in spans] == regex.findall(GPT4_PATTERN, text), repr(text)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_share_of_the_documents_is_sampled_and_a_larger_share_holds_the_smaller(share):
    sampled = {number for number in range(5000) if is_sampled(f"id-{number}", share)}
    assert abs(len(sampled) - 5000 * share) <= 4 * (5000 * share * (1 - share)) ** 0.5
    assert sampled <= {number for number in range(5000) if is_sampled(f"id-{number}", share + 0.1)}


@pytest.fixture
def train(tmp_path, run_step):
    """Runs the step over shards of documents; tokenizer file and books."""

    def run(shards: list[list[Document]], share: float, folder: str = "out") -> tuple[str, dict]:
        for rank, documents in enumerate(shards):
            run_step(WriteShard(str(tmp_path)), documents, rank)
        paths = [str(tmp_path / f"documents/part-{rank:05d}.parquet") for rank in range(len(shards))]
        (tmp_path / folder).mkdir()
        run_step(TrainBpe(paths, str(tmp_path / folder), BpeTraining(vocabulary_size=300), share))
        books = json.loads((tmp_path / folder / "shards/00000.json").read_text())
        return (tmp_path / folder / "tokenizer/tokenizer.json").read_text(), books

    return run


def test_the_step_trains_on_all_shards_and_keeps_its_books(train, prose):
    shards = [[Document(text=prose(9, seed=s), id=f"{n}/{s}") for s in range(20)] for n in range(2)]
    file, books = train(shards, 0.5)
    sampled = [d for shard in shards for d in shard if is_sampled(d.id, 0.5)]
    assert (books["read"], books["kept"]) == (40, len(sampled))
    assert books["removed"] == {"not_sampled": 40 - len(sampled)}
    assert books["measures"] == {"vocabulary_size": 300}
    texts = iter([document.text for document in sampled])
    assert json.loads(file) == json.loads(train_tokenizer(texts, BpeTraining(vocabulary_size=300)).to_str())


def test_the_step_writes_the_same_file_twice(train, prose):
    shards = [[Document(text=prose(9), id="a")]]
    assert train(shards, 1.0, "one")[0] == train(shards, 1.0, "other")[0]


def test_golden(trained):
    """A new version of `tokenizers` may change this; it is part of the key."""
    assert digest_of(json.loads(trained.to_str())) == GOLDEN, (
        "behaviour changed: raise the version in tasks/bpe_training.py"
    )
