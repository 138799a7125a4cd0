"""Rows of tokens: which comes when, and what is in it."""

import json
from pathlib import Path

import numpy as np
import pytest

from model.data import TokenRows, TokenStream
from pipeline_config.errors import TrainingError

ROW = 8


def write_tokens(folder: Path, shards: list[tuple[str, str, int]], token_bytes: int = 2) -> Path:
    """A tokens folder whose shards (split, source, tokens) count up from 1000 times their number."""
    (folder / "tokens").mkdir(parents=True)
    described = []
    for number, (split, source, count) in enumerate(shards):
        tokens = np.arange(1000 * number, 1000 * number + count, dtype=f"<u{token_bytes}")
        name = f"tokens/{split}-{number:05d}.ds"
        tokens.tofile(folder / name)
        described.append({"file": name, "split": split, "source": source, "tokens": count})
    (folder / "tokens.json").write_text(json.dumps({"token_bytes": token_bytes, "shards": described}))
    return folder


def make(
    folder: Path, tokens: dict[str, int], weights: dict[str, float] | None = None, seed: int = 0
) -> TokenRows:
    write_tokens(folder, [("train", source, count) for source, count in tokens.items()])
    return TokenRows(folder, "train", ROW, weights or {}, seed)


@pytest.mark.parametrize(
    "weights",
    [
        pytest.param([1], id="one source"),
        pytest.param([1, 1], id="equal"),
        pytest.param([3, 1], id="three to one"),
        pytest.param([0.7, 0.2, 0.1], id="shares"),
        pytest.param([1000, 1], id="a rare source"),
        pytest.param([505.89, 95, 20.33, 1.08, 1], id="five of very different weight"),
        pytest.param([171.4, 42.44, 4.41, 1, 573.25], id="another five"),
    ],
)
def test_every_prefix_has_each_source_in_proportion_to_its_weight_within_one(
    tmp_path: Path, weights: list[float]
) -> None:
    named = {f"source-{number}": weight for number, weight in enumerate(weights)}
    schedule = make(tmp_path / "tokens", dict.fromkeys(named, 100), named).schedule(1000)
    taken = np.cumsum(schedule[:, :1] == np.arange(len(weights)), axis=0)
    quota = np.outer(np.arange(1, 1001), np.array(weights) / sum(weights))
    assert np.abs(taken - quota).max() <= 1 + 1e-9


def test_each_epoch_of_a_source_visits_every_row_once(tmp_path: Path) -> None:
    rows = make(tmp_path / "tokens", {"a": 10 * ROW + 1, "b": 3 * ROW + 1}, {"a": 1, "b": 2})
    assert [stream.rows for stream in rows.streams] == [10, 3]
    schedule = rows.schedule(90)
    for number, count in enumerate((10, 3)):
        order = schedule[schedule[:, 0] == number, 1]
        epochs = order[: len(order) // count * count].reshape(-1, count)
        assert len(epochs) >= 3
        assert (np.sort(epochs, axis=1) == np.arange(count)).all()


def test_each_epoch_has_another_order(tmp_path: Path) -> None:
    epochs = make(tmp_path / "tokens", {"a": 20 * ROW + 1}).schedule(60)[:, 1].reshape(3, 20)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_longer_schedule_starts_as_the_shorter_one(tmp_path: Path) -> None:
    rows = make(tmp_path / "tokens", {"a": 90, "b": 50}, {"a": 2, "b": 1})
    assert (rows.schedule(200)[:70] == rows.schedule(70)).all()


@pytest.mark.parametrize(
    ("seed", "same"), [pytest.param(0, True, id="same"), pytest.param(1, False, id="other")]
)
def test_the_order_follows_from_the_seed(tmp_path: Path, seed: int, same: bool) -> None:
    one = make(tmp_path / "one", {"a": 400}).schedule(40)
    two = make(tmp_path / "two", {"a": 400}, seed=seed).schedule(40)
    assert (one == two).all() == same


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_rows_go_on_across_the_ends_of_shards(tmp_path: Path, token_bytes: int) -> None:
    lengths = [5, 3, 30, 1, 1, 7]
    folder = write_tokens(tmp_path / "t", [("train", "a", count) for count in lengths], token_bytes)
    whole = np.concatenate([np.arange(1000 * n, 1000 * n + count) for n, count in enumerate(lengths)])
    paths = sorted((folder / "tokens").glob("*.ds"))
    stream = TokenStream(paths, token_bytes, ROW)
    assert stream.rows == (sum(lengths) - 1) // ROW
    for index in range(stream.rows):
        assert stream.row(index).tolist() == whole[index * ROW : (index + 1) * ROW + 1].tolist()


def test_four_byte_tokens_keep_their_value(tmp_path: Path) -> None:
    np.array([70_000, 4_000_000_000, 1], dtype="<u4").tofile(tmp_path / "a.ds")
    assert TokenStream([tmp_path / "a.ds"], 4, 2).row(0).tolist() == [70_000, 4_000_000_000, 1]


def test_targets_are_the_inputs_one_position_later(tmp_path: Path) -> None:
    rows = make(tmp_path / "tokens", {"a": 100, "b": 100})
    ids, targets = rows.batch(rows.schedule(6))
    assert ids.shape == targets.shape == (6, ROW)
    assert (ids[:, 1:] == targets[:, :-1]).all()
    assert (targets == ids + 1).all()  # the shards count up
    assert sorted({int(row[0]) // 1000 for row in ids}) == [0, 1]


def test_sources_and_splits_are_kept_apart(tmp_path: Path) -> None:
    shards = [("train", "a", 100), ("validation", "a", 100), ("train", "b", 100), ("train", "a", 100)]
    folder = write_tokens(tmp_path / "tokens", shards)
    rows = TokenRows(folder, "train", ROW, {}, 0)
    assert rows.sources == ["a", "b"]
    ids, _ = rows.batch(rows.in_order(1000))
    assert set((ids.flatten() // 1000).tolist()) == {0, 2, 3}
    assert TokenRows(folder, "validation", ROW, {}, 0).sources == ["a"]


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [
        pytest.param(ROW + 1, 1, id="exactly one row"),
        pytest.param(2 * ROW, 1, id="nearly two"),
        pytest.param(2 * ROW + 1, 2, id="two"),
    ],
)
def test_a_row_needs_the_token_after_it(tmp_path: Path, tokens: int, rows: int) -> None:
    assert make(tmp_path / "tokens", {"a": tokens}).rows == rows


@pytest.mark.parametrize(
    "shards",
    [
        pytest.param([("train", "a", ROW)], id="one token short"),
        pytest.param([("validation", "a", 100)], id="only the other split"),
        pytest.param([], id="none"),
    ],
)
def test_too_little_text_is_an_error_that_says_so(tmp_path: Path, shards: list[tuple[str, str, int]]) -> None:
    folder = write_tokens(tmp_path / "tokens", shards)
    with pytest.raises(TrainingError, match=f"the train split has no row of {ROW} tokens: take more"):
        TokenRows(folder, "train", ROW, {}, 0)


def test_a_source_with_too_little_text_is_left_out_and_the_others_share_its_weight(tmp_path: Path) -> None:
    rows = make(tmp_path / "tokens", {"small": 3, "a": 100, "b": 100}, {"small": 8, "a": 3, "b": 1})
    schedule = rows.schedule(40)
    assert rows.sources == ["a", "b"]
    assert np.bincount(schedule[:, 0]).tolist() == [30, 10]


@pytest.mark.parametrize(
    ("count", "rows"), [pytest.param(7, 7, id="some"), pytest.param(99, 24, id="all that there are")]
)
def test_in_order_names_each_row_at_most_once_and_always_the_same(
    tmp_path: Path, count: int, rows: int
) -> None:
    made = make(tmp_path / "tokens", {"a": 100, "b": 100})
    pairs = made.in_order(count)
    assert len({tuple(pair) for pair in pairs.tolist()}) == len(pairs) == rows
    assert (pairs == made.in_order(count)).all()
    assert pairs.tolist() == sorted(pairs.tolist())
    assert {0, 1} == set(pairs[:, 0].tolist())
