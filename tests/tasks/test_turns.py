"""Turns across machines, on a real Prefect server; schedules that were missed."""

import datetime
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.states import Completed

from tasks.mirror import Mirror
from tasks.store import Store
from tasks.turns import computing_turn, later_run, reprocessing_turn, turn

KEY = "0123456789abcdef" * 4


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as opened:
        yield opened


def limits(client: SyncPrefectClient) -> dict[str, int]:
    """Names and occupied slots of the concurrency limits."""
    answer = client.request("POST", "/v2/concurrency_limits/filter", json={"limit": 200})
    return {found["name"]: found["active_slots"] for found in answer.json()}


class Others:
    """Takes a turn in another thread, and says when it has it."""

    def __init__(self, context: Any):
        self.context, self.had = context, threading.Event()
        self.thread = threading.Thread(target=self._take)
        self.thread.start()

    def _take(self) -> None:
        with self.context:
            self.had.set()


def test_only_one_has_the_turn_and_the_next_gets_it_when_it_ends(tmp_path: Path) -> None:
    with turn(str(tmp_path)):
        others = Others(turn(str(tmp_path)))
        assert not others.had.wait(1.5)
    assert others.had.wait(20)
    others.thread.join()


def test_a_turn_is_given_back_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="bug"), turn(str(tmp_path)):
            raise ValueError("bug")


def test_stores_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with reprocessing_turn(Store(tmp_path / "one")):
        others = Others(reprocessing_turn(Store(tmp_path / "two")))
        assert others.had.wait(20)
        others.thread.join()


def test_machines_that_share_a_store_compute_an_output_in_turn(
    tmp_path: Path, client: SyncPrefectClient
) -> None:
    one, two = (Store(tmp_path / name, Mirror(f"file://{tmp_path}/mirror")) for name in ("one", "two"))
    with computing_turn(one, "packing", KEY):
        (name,) = [name for name in limits(client) if name.endswith("-packing-0123456789abcdef")]
        others = Others(computing_turn(two, "packing", KEY))
        with computing_turn(two, "packing", "f" * 64):
            pass
        assert not others.had.wait(1.5)
    assert others.had.wait(20)
    others.thread.join()
    assert name not in limits(client)  # one limit for each output would be many


def test_one_machine_needs_no_turns_of_the_server(tmp_path: Path, client: SyncPrefectClient) -> None:
    with computing_turn(Store(tmp_path), "packing", "e" * 64):
        assert not any(name.endswith("e" * 16) for name in limits(client))


@flow(name="test-turns")
def nothing() -> None:
    """What the tests' deployment would do."""


@pytest.fixture(scope="module")
def due() -> Iterator[list[FlowRun]]:
    """Three scheduled runs of a deployment that are due, as after the server was away, oldest first."""
    with get_client(sync_client=True) as client:
        schedule = IntervalSchedule(interval=datetime.timedelta(seconds=1))
        deployment = client.create_deployment(
            client.create_flow(nothing), "turns", schedules=[DeploymentScheduleCreate(schedule=schedule)]
        )
        try:
            yield wait_for_three(client, deployment)
        finally:
            client.delete_deployment(deployment)


def wait_for_three(client: SyncPrefectClient, deployment: Any) -> list[FlowRun]:
    deadline = time.monotonic() + 60
    of_it = DeploymentFilter(id={"any_": [deployment]})
    while time.monotonic() < deadline:
        until = FlowRunFilter(expected_start_time={"before_": datetime.datetime.now(datetime.UTC)})
        runs = client.read_flow_runs(flow_run_filter=until, deployment_filter=of_it)
        if len(runs) >= 3:
            client.update_deployment(deployment, _paused())
            return sorted(runs, key=lambda run: run.expected_start_time)[:3]
        time.sleep(0.5)
    pytest.fail("the server scheduled no runs")


def _paused() -> Any:
    from prefect.client.schemas.actions import DeploymentUpdate

    return DeploymentUpdate(paused=True)


def as_run(monkeypatch: pytest.MonkeyPatch, run: FlowRun) -> None:
    """Makes this process that flow run."""
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", str(run.id))
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__DEPLOYMENT_ID", str(run.deployment_id))


def test_a_missed_schedule_is_left_to_the_last_of_the_runs_that_are_due(
    due: list[FlowRun], monkeypatch: pytest.MonkeyPatch, client: SyncPrefectClient
) -> None:
    assert all(run.auto_scheduled for run in due)
    as_run(monkeypatch, due[0])
    later = later_run()
    assert later.expected_start_time > due[0].expected_start_time
    as_run(monkeypatch, later)
    after = later_run()
    assert after is None or after.expected_start_time > later.expected_start_time


def test_a_run_that_was_started_by_hand_is_not_left_to_others(
    due: list[FlowRun], monkeypatch: pytest.MonkeyPatch, client: SyncPrefectClient
) -> None:
    by_hand = client.create_flow_run_from_deployment(due[0].deployment_id)
    as_run(monkeypatch, by_hand)
    assert later_run() is None


def test_runs_that_ended_do_nobodys_work(
    due: list[FlowRun], monkeypatch: pytest.MonkeyPatch, client: SyncPrefectClient
) -> None:
    as_run(monkeypatch, due[0])
    while later := later_run():
        client.set_flow_run_state(later.id, Completed(), force=True)
    assert later_run() is None


def test_outside_a_deployment_nothing_is_left_to_others() -> None:
    assert later_run() is None
