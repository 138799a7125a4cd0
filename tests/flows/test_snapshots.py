"""New snapshots of a crawl become part of the corpus; what was there is not computed again."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from flows.reprocess import reprocess
from pipeline_config.presets import load_settings
from pipeline_config.settings import Settings
from tasks.lineage import RunRecord, all_runs
from tasks.store import open_store
from tests.services.served import Served, wait_for

FIRST, SECOND = "CC-2026-10", "CC-2026-20"


@pytest.fixture
def crawl(tiny_run: SimpleNamespace, tmp_path: Path) -> Path:
    """A crawl of one snapshot; `land` adds the other one."""
    land(tmp_path / "crawl", FIRST, tiny_run)
    return tmp_path / "crawl"


def land(crawl: Path, dump: str, tiny_run: SimpleNamespace) -> None:
    """Puts a snapshot where it is looked for: one of the two WARC files of the shared run's crawl."""
    files = sorted(tiny_run.home.glob("store/sample_crawl/*/warc/*.warc.gz"))
    (crawl / dump).mkdir(parents=True)
    shutil.copy(files[dump == SECOND], crawl / dump / "part.warc.gz")


@pytest.fixture
def preset(crawl: Path, tiny_preset: str, tmp_path: Path) -> str:
    values = yaml.safe_load(Path(tiny_preset).read_text())
    source = {"name": "cc", "kind": "warc", "base": str(crawl), "uris": ["{dump}/*.warc.gz"], "dump": "CC-*"}
    path = tmp_path / "crawls.yaml"
    path.write_text(yaml.safe_dump(values | {"sources": [source]}), "utf-8")
    return str(path)


@pytest.fixture
def settings(preset: str) -> Settings:
    return load_settings(preset)


def texts(run: RunRecord) -> set[str]:
    folder = open_store().path(run.at("document_split")[-1].output) / "documents"
    return {text for path in folder.glob("*.parquet") for text in pq.read_table(path)["text"].to_pylist()}


def test_only_a_new_snapshot_is_computed_and_a_new_version_appears(
    settings: Settings, crawl: Path, tiny_run: SimpleNamespace, home: Path
) -> None:
    assert reprocess(settings) == {"new_snapshots": [f"cc-{FIRST}"], "corpus_version": 1}
    extracted = set(home.glob("store/text_extraction/*"))
    land(crawl, SECOND, tiny_run)
    assert reprocess(settings) == {"new_snapshots": [f"cc-{SECOND}"], "corpus_version": 2}
    assert len(set(home.glob("store/text_extraction/*")) - extracted) == 1
    first, second = all_runs()
    assert [node.label for node in second.at("text_extraction")] == [f"cc-{FIRST}", f"cc-{SECOND}"]
    assert texts(first) < texts(second)  # of two duplicates the one that was there stays


def test_without_a_new_snapshot_nothing_is_run(settings: Settings, home: Path) -> None:
    reprocess(settings)
    before = list(home.glob("runs/*.json"))
    assert reprocess(settings) == {"new_snapshots": [], "corpus_version": 1}
    assert list(home.glob("runs/*.json")) == before


@pytest.mark.slow
def test_a_snapshot_that_lands_starts_reprocessing(
    preset: str, crawl: Path, tiny_run: SimpleNamespace, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    served = Served(tmp_path / "home", ["--preset", preset, "--watch-seconds", "1"])
    try:
        served.start()
        land(crawl, SECOND, tiny_run)
        deployment: dict[str, Any] = {"id": {"any_": [served.deployment("reprocess", "crawls")["id"]]}}
        found: list[dict[str, Any]] = []

        def started() -> bool:
            found[:] = served.api("POST", "flow_runs/filter", deployments=deployment)
            return bool(found)

        wait_for(started, 60, served.said)
        assert served.ended(found[0]["id"]) == "Completed"
        page = served.artifacts(found[0]["id"])["reprocessing"]
        assert f"{SECOND} has landed" in page
        assert f"| cc-{SECOND} | new |" in page
    finally:
        served.end()
