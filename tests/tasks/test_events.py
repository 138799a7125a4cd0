"""Events, as a real Prefect server gets them."""

import time
from typing import Any

from prefect.client.orchestration import get_client

from tasks.events import COMMITTED, LANDED, announce, announce_snapshot
from tasks.store import StageOutput, digest_of


def arrived(name: str, **payload: str) -> dict[str, Any]:
    """The event of a name whose payload has these values."""
    deadline = time.monotonic() + 30
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            query = {"filter": {"event": {"name": [name]}}, "limit": 50}
            for event in client.request("POST", "/events/filter", json=query).json()["events"]:
                if payload.items() <= event["payload"].items():
                    return event
            time.sleep(0.2)
    raise AssertionError(f"no event {name} with {payload} arrived")


def test_an_output_is_announced_with_its_stage_its_key_and_its_run() -> None:
    key = digest_of(time.time_ns())
    announce("training", StageOutput(stage="training", key=key, digest="d", label="all"), "tiny")
    event = arrived(COMMITTED, key=key)
    assert event["event"] == "tokenmill.output.committed"
    assert event["resource"]["prefect.resource.id"] == "tokenmill.stage.training"
    assert event["payload"] == {"key": key, "digest": "d", "label": "all", "run": "tiny"}


def test_a_snapshot_is_announced_with_its_preset() -> None:
    snapshot = f"CC-{time.time_ns()}"
    announce_snapshot("mini-snapshots", "cc", snapshot)
    event = arrived(LANDED, snapshot=snapshot)
    assert event["event"] == "tokenmill.snapshot.landed"
    assert event["resource"]["prefect.resource.id"] == "tokenmill.preset.mini-snapshots"
    assert event["payload"] == {"preset": "mini-snapshots", "source": "cc", "snapshot": snapshot}
