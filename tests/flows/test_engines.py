"""The document stages on clusters: the same bytes as on this machine."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.prepare_tokens import prepare_tokens
from pipeline_config.settings import Settings
from tests.outputs import manifests

pytestmark = pytest.mark.slow
STAGES = (
    "sample_crawl",
    "url_filtering",
    "text_extraction",
    "language_identification",
    "quality_filtering",
    "deduplication",
    "pii_scrubbing",
    "document_split",
    "bpe_training",
    "packing",
)


@pytest.fixture(params=["ray", "slurm"])
def cluster(request: pytest.FixtureRequest) -> list[str]:
    """Overrides that send a run's document stages to a cluster."""
    here = "execution.executor"
    if request.param == "ray":
        return [f"{here}.kind=ray", f"{here}.ray.address={request.getfixturevalue('ray_cluster')}"]
    request.getfixturevalue("slurm")
    return [f"{here}.kind=slurm", f"{here}.slurm.poll_seconds=0.2", f"{here}.slurm.shards_per_task=2"]


def test_a_cluster_gives_the_same_keys_and_bytes_as_this_machine(
    tiny_run: SimpleNamespace, tiny: Callable[..., Settings], home: Path, cluster: list[str]
):
    prepare_tokens(tiny("execution.workers=2", *cluster))
    found = {name: text for name, text in manifests(home).items() if name.split("/")[0] in STAGES}
    assert {name.split("/")[0] for name in found} == set(STAGES)
    assert found.items() <= tiny_run.manifests.items()
