"""Turns across machines, on a real Prefect server; schedules that were missed."""

import datetime
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, GlobalConcurrencyLimitCreate
from prefect.client.schemas.filters import DeploymentFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed, Running

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
    with turn(tmp_path.name):
        others = Others(turn(tmp_path.name))
        assert not others.had.wait(1.5)
    assert others.had.wait(20)
    others.thread.join()


def test_a_turn_that_another_one_made_meanwhile_is_waited_for(
    tmp_path: Path, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SyncPrefectClient.read_global_concurrency_limit_by_name

    def overtaken(self: SyncPrefectClient, name: str) -> Any:
        monkeypatch.undo()
        self.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
        raise ObjectNotFound(http_exc=ValueError("there was none"))

    monkeypatch.setattr(SyncPrefectClient, read.__name__, overtaken)
    with turn(tmp_path.name):
        assert limits(client)[tmp_path.name] == 1


def test_a_turn_is_given_back_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="bug"), turn(tmp_path.name):
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


@pytest.fixture
def due(client: SyncPrefectClient) -> Iterator[list[FlowRun]]:
    """Three scheduled runs of a deployment that are due, as after the server was away, oldest first."""
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=4)
    every = IntervalSchedule(interval=datetime.timedelta(minutes=1), anchor_date=start)
    schedules = [DeploymentScheduleCreate(schedule=every)]
    deployment = client.create_deployment(client.create_flow(nothing), "turns", schedules=schedules)
    span = {"start_time": start.isoformat(), "end_time": (start + 3.5 * every.interval).isoformat()}
    client.request("POST", f"/deployments/{deployment}/schedule", json=span | {"max_runs": 3, "min_runs": 3})
    runs = client.read_flow_runs(deployment_filter=DeploymentFilter(id={"any_": [deployment]}))
    yield sorted(runs, key=lambda run: run.expected_start_time)
    client.delete_deployment(deployment)


def as_run(monkeypatch: pytest.MonkeyPatch, run: FlowRun) -> None:
    """Makes this process that flow run."""
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", str(run.id))


def test_a_missed_schedule_is_left_to_the_last_of_the_runs_that_are_due(
    due: list[FlowRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    left_to = []
    for run in due:
        as_run(monkeypatch, run)
        left_to.append(getattr(later_run(), "id", None))
    assert left_to == [due[-1].id, due[-1].id, None]


def test_runs_that_ended_and_runs_that_are_not_due_do_nobodys_work(
    due: list[FlowRun], monkeypatch: pytest.MonkeyPatch, client: SyncPrefectClient
) -> None:
    as_run(monkeypatch, due[0])
    client.set_flow_run_state(due[2].id, Completed(), force=True)
    assert later_run().id == due[1].id
    client.set_flow_run_state(due[1].id, Running(), force=True)
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    span = {"start_time": tomorrow.isoformat(), "max_runs": 1, "min_runs": 1}
    client.request("POST", f"/deployments/{due[0].deployment_id}/schedule", json=span)
    assert later_run() is None


def test_a_run_that_was_started_by_hand_neither_leaves_its_work_nor_takes_others(
    due: list[FlowRun], monkeypatch: pytest.MonkeyPatch, client: SyncPrefectClient
) -> None:
    by_hand = client.create_flow_run_from_deployment(due[0].deployment_id)
    as_run(monkeypatch, by_hand)
    assert later_run() is None
    as_run(monkeypatch, due[-1])
    assert later_run() is None


@flow(name="test-turns")
def by_command() -> Any:
    return later_run()


def test_a_flow_that_was_started_by_a_command_leaves_nothing_to_others() -> None:
    assert by_command() is None


def test_outside_a_flow_nothing_is_left_to_others() -> None:
    assert later_run() is None
