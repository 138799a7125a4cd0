"""Events that automations in Prefect react to.

tokenmill.output.committed    a stage made an output      (tokenmill.stage.<stage>; key, digest, run)
tokenmill.snapshot.landed     a new snapshot of a source  (tokenmill.preset.<preset>; source, snapshot)
"""

from prefect.events import emit_event

from tasks.store import StageOutput

COMMITTED, LANDED = "tokenmill.output.committed", "tokenmill.snapshot.landed"


def stage_resource(stage: str) -> str:
    """What the events of a stage are about."""
    return f"tokenmill.stage.{stage}"


def preset_resource(preset: str) -> str:
    """What the events of a preset's snapshots are about."""
    return f"tokenmill.preset.{preset}"


def announce(stage: str, output: StageOutput, run: str) -> None:
    """Says that a stage made an output."""
    emit_event(
        COMMITTED,
        resource={"prefect.resource.id": stage_resource(stage), "prefect.resource.name": stage},
        payload={"key": output.key, "digest": output.digest, "label": output.label, "run": run},
    )


def announce_snapshot(preset: str, source: str, snapshot: str) -> None:
    """Says that a snapshot is there and whole."""
    emit_event(
        LANDED,
        resource={"prefect.resource.id": preset_resource(preset), "prefect.resource.name": preset},
        payload={"preset": preset, "source": source, "snapshot": snapshot},
    )
