"""Taking turns across machines by Prefect's concurrency limits; missed schedules are caught up once."""

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
from prefect.exceptions import ObjectAlreadyExists
from prefect.runtime import flow_run

from tasks.store import Store

LEASE_SECONDS = 60.0  # a process that dies gives its turn back after that


@contextlib.contextmanager
def turn(name: str) -> Iterator[None]:
    """Waits until nobody else has this turn, on whatever machine. Prefect's page of limits shows it."""
    with get_client(sync_client=True) as client, contextlib.suppress(ObjectAlreadyExists):  # made meanwhile
        client.upsert_global_concurrency_limit_by_name(name, 1)
    with concurrency(name, lease_duration=LEASE_SECONDS, raise_on_lease_renewal_failure=False):
        yield


@contextlib.contextmanager
def computing_turn(store: Store, stage: str, key: str) -> Iterator[None]:
    """Waits until no other machine computes an output of a shared store; on one machine locks do."""
    if not store.mirror:
        yield
        return
    name = f"tokenmill-{_short(store.address)}-{stage}-{key[:16]}"
    with turn(name):
        yield
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        client.delete_global_concurrency_limit_by_name(name)


def reprocessing_turn(store: Store) -> contextlib.AbstractContextManager[None]:
    """Waits until no other reprocessing works on a store."""
    return turn(f"tokenmill-{_short(store.address)}-reprocess")


def _short(address: str) -> str:
    return hashlib.sha256(address.encode()).hexdigest()[:8]


def later_run() -> Any | None:
    """A scheduled run of the same deployment that is due, too, and was to start later than this one.

    After the server was away several are due at once; the last one does the work of all.
    """
    if not flow_run.id:
        return None
    with get_client(sync_client=True) as client:
        this = client.read_flow_run(UUID(str(flow_run.id)))
        if not this.deployment_id or not this.auto_scheduled or this.expected_start_time is None:
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
