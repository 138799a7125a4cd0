"""The pages that a person opens, in a real browser against a real MLflow server."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from flows.build_corpus import build_corpus
from pipeline_config.presets import load_settings

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MODE = "workflowType=machine_learning"
WAIT_MS = 30_000
CELLS_BESIDE = """name => {
  const top = name.getBoundingClientRect().top;
  const cells = [...document.querySelectorAll('.ReactVirtualized__Grid__innerScrollContainer > *')];
  const near = cell => Math.abs(cell.getBoundingClientRect().top + 12 - top) < 20;
  return cells.filter(near).map(cell => cell.innerText.trim());
}"""


@pytest.fixture(scope="module")
def two_runs(tiny_run: SimpleNamespace, tiny_preset: str) -> SimpleNamespace:
    """The shared run, and another one whose quality filter removes more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENMILL_HOME", str(tiny_run.home))
        build_corpus(load_settings(tiny_preset, ["quality_filtering.gopher_quality.min_doc_words=150"]))
    return tiny_run


@pytest.fixture(scope="module")
def mlflow_address(two_runs: SimpleNamespace) -> Iterator[str]:
    """The address of an MLflow server on the runs' records."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    records = two_runs.home / "mlflow"
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{records / 'mlflow.db'}"]
    command += ["--artifacts-destination", str(records / "artifacts")]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_answers(f"{address}/health", server)
        yield address
    finally:
        server.terminate()
        server.wait()


def wait_until_it_answers(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"{address} does not answer")


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1600, "height": 1200})
    page.set_default_timeout(WAIT_MS)
    yield page
    page.close()


@pytest.fixture(scope="module")
def runs(two_runs: SimpleNamespace, mlflow_address: str) -> list[Run]:
    """All runs, the newest first."""
    client = MlflowClient(mlflow_address)
    experiment = client.get_experiment_by_name("tokenmill")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], max_results=1000))


@pytest.fixture
def open_page(page: Any, mlflow_address: str, runs: list[Run]) -> Callable[[str], Any]:
    """Opens a page of the experiment, as the links that we print do."""
    experiment = runs[0].info.experiment_id

    def open_it(where: str) -> Any:
        where = where.replace("EXPERIMENT", f"/experiments/{experiment}")
        page.goto(f"{mlflow_address}/?{MODE}#{where}{'&' if '?' in where else '?'}{MODE}")
        return page

    return open_it


def pipelines(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run.data.tags["kind"] == "pipeline"]


def stage_run(runs: list[Run], stage: str, cached: str = "false") -> Run:
    return next(r for r in runs if (r.data.tags.get("stage"), r.data.tags.get("cached")) == (stage, cached))


def test_the_run_list_shows_pipeline_runs_with_their_datasets(open_page: Callable[[str], Any]) -> None:
    page = open_page("EXPERIMENT/runs")
    page.get_by_role("link", name="tiny").first.wait_for()
    page.get_by_text(re.compile("sample_crawl documentation")).first.wait_for()


def test_the_run_list_filtered_by_a_digest_shows_its_users(
    open_page: Callable[[str], Any], runs: list[Run]
) -> None:
    digest = stage_run(runs, "deduplication").data.tags["digest"]
    search = quote(f"tags.consumes LIKE '%{digest[:36]}%'")
    page = open_page(f"EXPERIMENT/runs?searchFilter={search}")
    page.get_by_text("pii_scrubbing").first.wait_for()


def test_a_stage_page_leads_to_its_inputs_output_and_users(
    open_page: Callable[[str], Any], runs: list[Run]
) -> None:
    run = stage_run(runs, "quality_filtering")
    page = open_page(f"EXPERIMENT/runs/{run.info.run_id}")
    page.get_by_text("05 quality_filtering documentation").first.wait_for()
    page.get_by_text(re.compile("language_identification documentation")).first.wait_for()
    page.get_by_role("link", name="users of the output").wait_for()
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="language_identification documentation").click()
    opened.value.get_by_text("04 language_identification documentation").first.wait_for()


def test_the_dataset_drawer_shows_digest_and_counts(open_page: Callable[[str], Any], runs: list[Run]) -> None:
    run = stage_run(runs, "quality_filtering")
    page = open_page(f"EXPERIMENT/runs/{run.info.run_id}")
    page.get_by_text(re.compile("language_identification documentation \\(")).first.click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_text(re.compile("language_identification")).first.wait_for()
    assert "language_score" in drawer.inner_text()


def test_the_compare_view_shows_two_funnels_side_by_side(
    open_page: Callable[[str], Any], runs: list[Run]
) -> None:
    first, second = pipelines(runs)[:2]
    chosen = quote(json.dumps([first.info.run_id, second.info.run_id]))
    experiments = quote(json.dumps([first.info.experiment_id]))
    page = open_page(f"/compare-runs?runs={chosen}&experiments={experiments}")
    metric = "deduplication/all/kept"
    name = page.get_by_role("link", name=metric, exact=True)
    name.wait_for()
    assert first.data.metrics[metric] != second.data.metrics[metric]
    expected = {f"{run.data.metrics[metric]:g}" for run in (first, second)}
    assert expected <= set(name.evaluate(CELLS_BESIDE))


def test_the_report_is_shown_with_its_pictures(open_page: Callable[[str], Any], runs: list[Run]) -> None:
    run = stage_run(runs, "corpus_publication")
    page = open_page(f"EXPERIMENT/runs/{run.info.run_id}/artifacts/report.html")
    report = page.frame_locator("iframe").first
    report.get_by_role("heading", name="Corpus tiny").wait_for()
    report.locator("#funnel .sankey-link").first.wait_for()
    assert report.locator("#reasons .bars .point").count() > 0
    assert report.get_by_text("read = kept + removed + failed").count() == 1


def test_the_removal_table_is_shown_as_a_table(open_page: Callable[[str], Any], runs: list[Run]) -> None:
    run = stage_run(runs, "quality_filtering")
    page = open_page(f"EXPERIMENT/runs/{run.info.run_id}/artifacts/removals.json")
    page.get_by_text("gopher_short_doc").first.wait_for()
    page.get_by_text("share_of_read").first.wait_for(state="attached")


def test_the_registered_model_names_its_data_and_tokenizer(
    open_page: Callable[[str], Any], runs: list[Run], two_runs: SimpleNamespace
) -> None:
    page = open_page("/models/tokenmill-tiny")
    page.get_by_text("current").first.wait_for()
    page = open_page("/models/tokenmill-tiny/versions/1")
    for name in ("tokens", "tokenizer", "checkpoint"):
        page.get_by_text(two_runs.outcome.outputs[name].digest).first.wait_for(state="attached")
    page.get_by_role("link", name=re.compile("training all")).first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_file_can_be_read_in_both_schemes(
    browser: Any, two_runs: SimpleNamespace, scheme: str
) -> None:
    report = sorted(Path(two_runs.home).glob("store/corpus_publication/*/report.html"))[0]
    page = browser.new_page(color_scheme=scheme)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(report.as_uri())
    page.locator("#funnel .sankey-link").first.wait_for()
    colours = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) > 384 for colour in colours]
    assert light == ([False, True] if scheme == "light" else [True, False])
    assert complaints == []
    page.close()
