"""Reprocessing takes turns: one at a time for each store, and missed schedules are caught up once."""

import contextlib
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.concurrency.sync import concurrency
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from tasks.store import Store

LEASE_SECONDS = 60.0  # a process that dies gives its turn back after that


@contextlib.contextmanager
def turn(store: Store) -> Iterator[None]:
    """Waits until no other reprocessing works on the store, on whatever machine."""
    name = limit_name(store)
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(name, 1)
    get_run_logger().info("waiting for the turn %s", name)
    with concurrency(name, lease_duration=LEASE_SECONDS, raise_on_lease_renewal_failure=False):
        yield


def limit_name(store: Store) -> str:
    """The name of the concurrency limit of a store, as Prefect's page of limits shows it."""
    return f"tokenmill-reprocess-{hashlib.sha256(store.address.encode()).hexdigest()[:8]}"


def later_run() -> Any | None:
    """A scheduled run of the same deployment that is due, too, and was to start later than this one.

    After the server was away several are due at once; the last one does the work of all.
    """
    if not flow_run.deployment_id or not flow_run.id:
        return None
    with get_client(sync_client=True) as client:
        this = client.read_flow_run(UUID(str(flow_run.id)))
        if not this.auto_scheduled or this.expected_start_time is None:
            return None
        due = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
                expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC)),
            ),
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[this.deployment_id])),
        )
    later = [run for run in due if run.auto_scheduled and run.expected_start_time > this.expected_start_time]
    return max(later, key=lambda run: run.expected_start_time, default=None)
