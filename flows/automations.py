"""What Prefect does on its own: flows that died are shown as crashed, and events start deployments."""

from datetime import timedelta
from typing import Any

from prefect.automations import Automation
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.events.schemas.deployment_triggers import DeploymentEventTrigger
from prefect.exceptions import ObjectNotFound

from tasks.events import COMMITTED, LANDED, preset_resource, stage_resource

HEARTBEAT = "prefect.flow-run.heartbeat"
ENDS = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed", "Paused")}
SILENCE = timedelta(seconds=90)  # three heartbeats, see pipeline_config/environment.py
CRASHED = "Tokenmill: flows that died"


def install() -> None:
    """Installs the automation that shows flows as crashed whose process no longer says that it is alive."""
    wanted = Automation(
        name=CRASHED,
        description="No heartbeat for 90 seconds: the process is gone. Start the run again with Retry.",
        trigger=EventTrigger(
            after={HEARTBEAT},
            expect={HEARTBEAT, *ENDS},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=SILENCE,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message="The process of this flow run is gone: nothing was heard of it for 90 seconds. "
                "Retry goes on where it stopped",
            )
        ],
    )
    try:
        found = Automation.read(name=CRASHED)
    except (ObjectNotFound, ValueError):
        wanted.create()
        return
    if _content(found) != _content(wanted):  # an update would forget which flows it waits for
        found.trigger, found.actions, found.description = wanted.trigger, wanted.actions, wanted.description
        found.update()


def _content(automation: Automation) -> list[Any]:
    actions = [action.model_dump(mode="json") for action in automation.actions]
    trigger = automation.trigger.model_dump(mode="json", exclude={"id"})
    for name in ("after", "expect", "for_each"):
        trigger[name] = sorted(trigger[name])
    return [trigger, actions, automation.description]


def on_new_snapshot(preset: str) -> DeploymentEventTrigger:
    """Starts a deployment when a snapshot of a preset's sources has landed."""
    return DeploymentEventTrigger(
        name=f"Tokenmill: new snapshot for {preset}",
        expect={LANDED},
        match={"prefect.resource.id": preset_resource(preset)},
        parameters={"reason": "{{ event.payload.snapshot }} has landed"},
    )


def on_new_checkpoint() -> DeploymentEventTrigger:
    """Starts a deployment when a training has committed a checkpoint."""
    return DeploymentEventTrigger(
        name="Tokenmill: new checkpoint",
        expect={COMMITTED},
        match={"prefect.resource.id": stage_resource("training")},
        parameters={"run": "{{ event.payload.key }}"},
    )
