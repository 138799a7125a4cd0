"""The same bytes from a crawl of five files, whatever the number of workers and the order of the shards."""

import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.build_corpus import build_corpus
from pipeline_config.presets import load_settings
from pipeline_config.processes import bound_command
from tests.outputs import manifests

FILES = 5
STAGES = {
    "sample_crawl",
    "url_filtering",
    "text_extraction",
    "language_identification",
    "quality_filtering",
    "deduplication",
    "pii_scrubbing",
    "document_split",
}


@pytest.fixture(scope="module")
def corpus(tiny_preset: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """Builds a corpus in a data folder of its own; gives the manifests of its outputs."""

    def build(*overrides: str) -> dict[str, str]:
        home = tmp_path_factory.mktemp("home")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOKENMILL_HOME", str(home))
            build_corpus(load_settings(tiny_preset, [f"sample_crawl.warc_files={FILES}", *overrides]))
        return {name: text for name, text in manifests(home).items() if name.split("/")[0] in STAGES}

    return build


@pytest.fixture(scope="module")
def by_one(corpus: Callable[..., dict[str, str]]) -> dict[str, str]:
    """What one worker makes of it, shard by shard."""
    found = corpus("execution.workers=1")
    assert {name.split("/")[0] for name in found} == STAGES
    return found


@pytest.mark.parametrize("workers", [2, 4])
def test_any_number_of_workers_gives_the_same_bytes(corpus, by_one, workers):
    assert corpus(f"execution.workers={workers}") == by_one


def test_shards_in_any_order_give_the_same_bytes(corpus, by_one, monkeypatch):
    orders: list[list[str]] = []

    def shuffled(module: str, file: str) -> list[str]:
        ranks = [str(rank) for rank in range(pickle.loads(Path(file).read_bytes()).world_size)]
        random.Random(len(orders)).shuffle(ranks)
        orders.append(ranks)
        return bound_command(module, file, *ranks)

    monkeypatch.setattr("tasks.executor.bound_command", shuffled)
    assert corpus("execution.workers=1") == by_one
    assert sum(ranks != sorted(ranks) for ranks in orders) >= 4, orders
