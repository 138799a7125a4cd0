"""Exposure: the steps that are reported for a document are those whose rows hold its tokens."""

import json
from pathlib import Path

import numpy as np
import pytest

from model.data import TokenRows
from pipeline_config.settings import Training
from tasks.audit.exposure import MOST_STEPS, rows_of, seen_by, token_ranges, trainings_of

ROW = 8
SETTINGS = {"model": {"max_context": ROW}, "steps": 7, "rows_per_step": 3}
WEIGHTS = {"web": 2.0, "books": 1.0, "tiny": 1.0}
Shards = dict[str, tuple[str, list[tuple[str, int]]]]


def settings(**changes) -> dict:
    """Settings of a training on rows of eight tokens, as a recipe holds them."""
    return Training.model_validate(SETTINGS | changes).model_dump(mode="json")


def random_shards(random: np.random.Generator) -> Shards:
    """Shards of three sources; many documents straddle rows, and one source has too little for a row."""
    names = ["train-00000", "train-00001", "train-00002", "train-00003", "validation-00000"]
    sources = ["web", "web", "books", "books", "web"]
    shards: Shards = {
        name: (source, [(f"{name}/{n}", int(random.integers(1, 3 * ROW))) for n in range(12)])
        for name, source in zip(names, sources, strict=True)
    }
    return shards | {"train-00004": ("tiny", [("train-00004/0", ROW - 2)])}


def steps_that_hold(folder: Path, values: set[int], chosen: dict) -> list[int]:
    """The steps whose batches hold one of the token values, read batch by batch."""
    rows = TokenRows(folder, "train", ROW, WEIGHTS, chosen["seed"])
    schedule = rows.schedule(chosen["steps"] * chosen["rows_per_step"])
    found = []
    for step in range(chosen["steps"]):
        pairs = schedule[step * chosen["rows_per_step"] : (step + 1) * chosen["rows_per_step"]]
        inputs, targets = rows.batch(pairs)
        if values & {*inputs.flatten().tolist(), *targets.flatten().tolist()}:
            found.append(step)
    return found


def values_of(folder: Path, part: dict) -> set[int]:
    """The token values of a range."""
    tokens = np.fromfile(folder / "tokens" / f"{part['shard']}.ds", "<u2")
    return set(tokens[part["start_token"] : part["end_token"]].tolist())


def check(found: dict, expected: list[int]) -> None:
    """Compares what is reported with the steps that were found one by one."""
    assert found["steps_that_saw_it"] == len(expected)
    assert found["first_steps"] == expected[:MOST_STEPS]
    assert found["last_step"] == (expected[-1] if expected else None)


@pytest.mark.parametrize("seed", range(3))
def test_the_steps_of_every_document_are_those_whose_batches_hold_its_tokens(hand, make, seed):
    shards = random_shards(np.random.default_rng(seed))
    packing = hand.packing(shards)
    chosen = settings(seed=seed, steps=[7, 60, 1][seed])  # from less than one epoch to many
    hand.training(packing, WEIGHTS, chosen)
    ledger = hand.ledger(hand.output("document_import", [make.document("x")]), packing)
    folder, seen = hand.store.path(packing.output), 0
    for name, (source, documents) in shards.items():
        for identity, tokens in documents:
            (part,) = token_ranges(ledger, packing, [{"id": identity, "source": source}])
            assert (part["shard"], part["token_count"]) == (name, tokens)
            (found,) = seen_by(hand.store, packing, [part])
            train = part["split"] == "train"
            expected = steps_that_hold(folder, values_of(folder, part), chosen) if train else []
            check(found, expected)
            assert found["validation"] is not train
            seen += bool(expected)
    assert seen > 2


@pytest.mark.parametrize("seed", range(2))
def test_random_ranges_over_several_shards_and_sources_are_seen_together(hand, seed):
    random = np.random.default_rng(seed)
    shards = random_shards(random)
    packing = hand.packing(shards)
    chosen = settings(seed=seed, steps=9)
    hand.training(packing, WEIGHTS, chosen)
    folder = hand.store.path(packing.output)
    for _ in range(40):
        ranges = []
        for name in random.choice(["train-00000", "train-00001", "train-00003"], 2, replace=False):
            total = (folder / "tokens" / f"{name}.ds").stat().st_size // 2
            start, end = sorted(random.choice(total + 1, 2, replace=False).tolist())
            part = {"shard": str(name), "split": "train", "source": shards[name][0]}
            ranges.append(part | {"start_token": start, "end_token": end})
        (found,) = seen_by(hand.store, packing, ranges)
        values = values_of(folder, ranges[0]) | values_of(folder, ranges[1])
        check(found, steps_that_hold(folder, values, chosen))


ENDS = [  # a stream of 3 rows: tokens 0 to 24, and 25 to 31 are in no row
    pytest.param(0, 1, [0], id="first token"),
    pytest.param(1, 8, [0], id="inside the first row"),
    pytest.param(8, 9, [0, 1], id="token that two rows share"),
    pytest.param(9, 16, [1], id="between the shared ones"),
    pytest.param(7, 10, [0, 1], id="straddling"),
    pytest.param(16, 17, [1, 2], id="second shared token"),
    pytest.param(0, 32, [0, 1, 2], id="everything"),
    pytest.param(24, 25, [2], id="last token of the last row"),
    pytest.param(25, 32, [], id="left over"),
    pytest.param(31, 32, [], id="last token of all"),
    pytest.param(20, 31, [2], id="into what is left over"),
]


@pytest.mark.parametrize(("start", "end", "rows"), ENDS)
@pytest.mark.parametrize("cut", [None, 5, 8, 9, 24, 25])
def test_rows_at_both_ends_whatever_the_shards(hand, start, end, rows, cut):
    lengths = [32] if cut is None else [cut, 32 - cut]
    shards = {f"train-{n:05d}": ("web", [(str(n), tokens - 1)]) for n, tokens in enumerate(lengths)}
    packing = hand.packing(shards)
    found: set[int] = set()
    for number, tokens in enumerate(lengths):
        before = sum(lengths[:number])
        first, last = max(start - before, 0), min(end - before, tokens)
        if first < last:
            part = {"split": "train", "source": "web", "shard": f"train-{number:05d}"}
            part |= {"start_token": first, "end_token": last}
            found |= set(rows_of(hand.store.path(packing.output), part, ROW))
    assert sorted(found) == rows


def test_an_id_that_two_sources_share_has_the_tokens_of_its_source(hand, make):
    packing = hand.packing({"train-00000": ("web", [("a", 3)]), "train-00001": ("books", [("a", 5)])})
    ledger = hand.ledger(hand.output("document_import", [make.document("a")]), packing)
    assert [
        part["token_count"] for part in token_ranges(ledger, packing, [{"id": "a", "source": "books"}])
    ] == [5]
    assert token_ranges(ledger, packing, [{"id": "a", "source": "tiny"}]) == []
    assert token_ranges(ledger, packing, [{"id": "' OR 1=1 --", "source": "web"}]) == []


def test_only_checkpoints_that_were_trained_on_these_tokens_count(hand):
    packing = hand.packing({"train-00000": ("web", [("a", 40)])})
    other = hand.packing({"train-00000": ("web", [("a", 41)])})
    mine = [hand.training(packing, WEIGHTS, settings(seed=seed)) for seed in (1, 2)]
    hand.training(other, WEIGHTS, settings(seed=3))
    assert {key for key, _ in trainings_of(hand.store, packing.digest)} == {node.key for node in mine}


def test_a_checkpoint_of_the_tiny_run_saw_the_documents_that_its_batches_hold(tiny_ledger):
    packing, training = tiny_ledger.run.last("packing"), tiny_ledger.run.last("training")
    folder = tiny_ledger.store.path(packing.output)
    chosen = tiny_ledger.store.manifest(training.output)["recipe"]["settings"]
    rows = TokenRows(folder, "train", 32, {"documentation": 1.0}, chosen["seed"])
    schedule = rows.schedule(chosen["steps"] * chosen["rows_per_step"]).reshape(chosen["steps"], -1, 2)
    starts, first = {}, 0
    for shard in json.loads((folder / "tokens.json").read_text("utf-8"))["shards"]:
        if shard["split"] == "train":
            starts[shard["file"]], first = first, first + shard["tokens"]
    for row in tiny_ledger.rows(
        "SELECT DISTINCT id FROM read_parquet(?)", [tiny_ledger.files(packing, "index")]
    ):
        (part,) = token_ranges(tiny_ledger, packing, [row | {"source": "documentation"}])
        found = next(f for f in seen_by(tiny_ledger.store, packing, [part]) if f["key"] == training.key)
        start = starts.get(f"tokens/{part['shard']}.ds", 10**9) + part["start_token"]
        end = start + part["end_token"] - part["start_token"]
        held = (schedule[..., 1] * 32 < end) & (schedule[..., 1] * 32 + 32 >= start)
        check(found, np.flatnonzero(held.any(axis=1)).tolist())
