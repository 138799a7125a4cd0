"""The serving command, and the UI as a person uses it: start, refuse, cancel, retry, schedule."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.services.process import clean_environment, new_secret
from tests.services.served import Served, processes_of, wait_for, workers_of

WAIT_MS, SAVED_MS, CANCEL_SECONDS = 30_000, 5_000, 10.0
FIELD = (
    "xpath=//span[contains(@class,'schema-form-property__label')][text()='{}']"
    "/ancestor::*[contains(concat(' ',@class,' '),' schema-form-property ')][1]"
)


@pytest.fixture(scope="module")
def served(tiny_run: SimpleNamespace, tiny_preset: str, tmp_path_factory: Any) -> Iterator[Served]:
    """The command on a copy of the shared run's data folder: its stages are cached."""
    home = tmp_path_factory.mktemp("served")
    for part in ("store", "runs", "mlflow"):
        shutil.copytree(tiny_run.home / part, home / part)
    served = Served(home, ["--preset", tiny_preset, "--watch-seconds", "1"])
    try:
        served.start()
        yield served
    finally:
        served.end()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(WAIT_MS)
    yield page
    page.close()


@pytest.fixture
def form(page: Any, served: Served) -> Callable[..., None]:
    """Opens the form of the main path on the tiny preset, fills fields in and submits."""

    def submit(**fields: str) -> None:
        page.goto(f"{served.ui}/deployments")
        page.get_by_placeholder("Search deployments").fill("tiny")
        row = page.get_by_role("row").filter(has_text="train-language-model")
        row.get_by_role("link", name="tiny").first.click()
        page.get_by_role("button", name="Run", exact=True).click()
        page.get_by_text("Custom run").click()
        for label, value in fields.items():
            field = page.locator(FIELD.format(label)).last
            field.locator("input, textarea").last.fill(value)
        page.get_by_role("button", name="Submit").click()

    return submit


def newest_run(served: Served) -> str:
    found = served.api("POST", "flow_runs/filter", sort="EXPECTED_START_TIME_DESC", limit=20)
    return next(run["id"] for run in found if run["deployment_id"] and not run["parent_task_run_id"])


@pytest.mark.browser
def test_a_run_is_started_from_the_form_and_its_funnel_is_on_its_page(
    page: Any, form: Callable[..., None], served: Served
) -> None:
    form(**{"Temperature (Optional)": "0.5", "Max Failed Share (Optional)": "0.25"})
    page.get_by_text("Completed").first.wait_for(timeout=120_000)
    run = newest_run(served)
    chosen = served.flow_run(run)["parameters"]["settings"]
    assert (chosen["text_generation"]["temperature"], chosen["execution"]["max_failed_share"]) == (0.5, 0.25)
    page.goto(f"{served.ui}/runs/flow-run/{run}")
    page.get_by_text("Artifacts", exact=True).click()
    page.get_by_text("What each stage kept").first.wait_for()
    assert "| text_generation | all |" in served.artifacts(run)["funnel"]


@pytest.mark.browser
def test_the_form_refuses_a_wrong_value_with_its_path(page: Any, form: Callable[..., None], served: Served):
    before = newest_run(served)
    form(**{"Workers (Optional)": "0"})
    page.get_by_text("'settings.execution.workers'").first.wait_for()
    page.get_by_text("0 is less than the minimum of 1").first.wait_for()
    assert newest_run(served) == before


def test_the_flow_refuses_what_the_form_cannot_know(served: Served) -> None:
    run = served.run("train-language-model", "tiny", {"training.model.heads": 3})
    assert served.ended(run) == "Failed"
    message = served.flow_run(run)["state"]["message"]
    assert "settings.training" in message
    assert "width 32 is not divisible by heads 3" in message


@pytest.mark.browser
@pytest.mark.slow
def test_a_run_is_cancelled_and_goes_on_with_retry(page: Any, served: Served) -> None:
    changes = {"training.steps": 500, "training.validation_every_steps": 100, "training.processes": 2}
    run = served.run("train-language-model", "tiny", changes)
    wait_for(lambda: "step 101 of 500" in served.log(run), 120, served.said)
    page.goto(f"{served.ui}/runs/flow-run/{run}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Confirm").click()
    wait_for(lambda: not children_of_runs(served.home), CANCEL_SECONDS, lambda: str(workers_of(served.home)))
    wait_for(lambda: not workers_of(served.home), 30, lambda: str(workers_of(served.home)))
    assert served.ended(run, 30) == "Cancelled"
    wait_for(lambda: "stopped after step " in served.log(run), 30, lambda: served.log(run))
    before, _, after = served.log(run).partition("stopped after step ")
    stopped_after = int(after.split()[0])
    assert steps_in(before)[-1] <= stopped_after
    page.reload()
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("button", name="Retry").last.click()
    wait_for(lambda: served.state(run) == "Running", 60, served.said)
    assert served.ended(run) == "Completed"
    resumed = steps_in(served.log(run).partition("stopped after step ")[2])
    assert resumed[0] > stopped_after
    assert resumed[-1] == 500


def children_of_runs(home: Path) -> list[str]:
    """Command lines of the processes that flow runs started."""
    return [line for line in workers_of(home) if "prefect.engine" not in line]


def steps_in(log: str) -> list[int]:
    """The steps that a training's lines name."""
    return [int(line.split()[1].replace(",", "")) for line in log.splitlines() if line.startswith("step ")]


@pytest.mark.browser
@pytest.mark.slow
def test_a_schedule_made_in_the_ui_runs(page: Any, served: Served) -> None:
    deployment = served.deployment("audit-flush", "tokenmill")["id"]
    address = f"{served.ui}/deployments/deployment/{deployment}"
    for _ in range(3):  # the dialog takes no click while it opens
        if not served.api("GET", f"deployments/{deployment}")["schedules"]:
            page.goto(address)
            page.get_by_role("button", name="Schedule", exact=True).click()
            page.get_by_text("Cron", exact=True).last.click()  # the dialog proposes every minute
            page.get_by_role("button", name="Save").click()
            page.wait_for_timeout(SAVED_MS)
    completed = {"state": {"name": {"any_": ["Completed"]}}}
    found = {"deployments": {"id": {"any_": [deployment]}}, "flow_runs": completed}
    wait_for(lambda: bool(served.api("POST", "flow_runs/filter", **found)), 180, served.said)
    page.goto(address)
    page.get_by_text("Completed").first.wait_for()


def test_the_automations_are_installed(served: Served) -> None:
    names = [found["name"] for found in served.api("POST", "automations/filter")]
    assert {"Tokenmill: flows that died", "Tokenmill: new checkpoint"} <= set(names)


def test_nothing_listens_beyond_loopback(served: Served) -> None:
    ours = {inode for process, _ in processes_of(served.home) for inode in sockets_of(process)}
    listening = [row for row in listeners() if row["inode"] in ours]
    assert {row["port"] for row in listening} >= set(served.ports)
    assert {row["address"] for row in listening} == {"0100007F"}  # 127.0.0.1


def sockets_of(process: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{process}/fd").glob("*"):
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def listeners() -> Iterator[dict[str, Any]]:
    """All listening TCP sockets. Source: proc(5), /proc/net/tcp; state 0A is LISTEN."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            parts = line.split()
            address, port = parts[1].rsplit(":", 1)
            if parts[3] == "0A":
                yield {"address": address, "port": int(port, 16), "inode": parts[9]}


@pytest.mark.slow
def test_a_server_that_is_killed_is_started_again(served: Served) -> None:
    for process, line in processes_of(served.home):
        if "prefect server start" in line or "flows.mlflow_server" in line:
            subprocess.run(["kill", "-KILL", str(process)], check=True)
    wait_for(lambda: served.said().count("starting it again") >= 2, 30, served.said)
    assert served.api("GET", "health") is True
    assert served.ended(served.run("audit-flush", "tokenmill")) == "Completed"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopping_stops_everything(served: Served, how: signal.Signals) -> None:
    assert served.stop(how) == 0
    assert list(processes_of(served.home)) == []
    served.start()


@pytest.mark.slow
def test_with_accounts_both_servers_refuse_strangers(tmp_path: Path, tiny_preset: str) -> None:
    prefect, mlflow = ("tokenmill", new_secret()), ("tokenmill", new_secret())
    served = Served(
        tmp_path,
        ["--preset", tiny_preset],
        PREFECT_SERVER_API_AUTH_STRING=":".join(prefect),
        PREFECT_API_AUTH_STRING=":".join(prefect),
        MLFLOW_TRACKING_USERNAME=mlflow[0],
        MLFLOW_TRACKING_PASSWORD=mlflow[1],
    )
    try:
        served.start()
        runs = f"{served.mlflow}/api/2.0/mlflow/experiments/search?max_results=1"
        flows = f"{served.ui}/api/flows/count"
        wrong = ("tokenmill", new_secret())
        assert [httpx.get(runs, auth=account).status_code for account in (None, wrong, mlflow)] == [
            401,
            401,
            200,
        ]
        assert [httpx.post(flows, auth=account).status_code for account in (None, wrong, prefect)] == [
            401,
            401,
            200,
        ]
        assert served.ended(served.run("audit-flush", "tokenmill")) == "Completed"
    finally:
        served.end()


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "flows.serve", "--prefect-port", port]
        environment = clean_environment(TOKENMILL_HOME=str(tmp_path))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"error: port {port} for Prefect's server: Address already in use" in done.stderr
    assert "--prefect-port" in done.stderr
