"""What the flows' commands share: settings from arguments, errors as one line, a summary at the end."""

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any, Self

from prefect.runtime import flow_run
from pydantic import BaseModel
from tqdm.contrib.logging import logging_redirect_tqdm

from flows import prefect_server
from pipeline_config.environment import artifact_root, check_home, home, tracking_uri
from pipeline_config.errors import StoreError, TokenmillError
from pipeline_config.presets import load_settings, preset_names
from pipeline_config.settings import STAGES, Settings
from tasks.funnel import as_text
from tasks.run import Run, Stopped
from tasks.sender import warm_up
from tasks.store import StageOutput, open_store

INTERRUPTED = 130  # as shells report SIGINT


class Outcome(BaseModel):
    """What a flow made: its outputs by name, and the funnel as text."""

    outputs: dict[str, StageOutput]
    funnel: str
    stopped: bool = False

    @classmethod
    def of(cls, run: Run) -> Self:
        """The outcome of a run so far."""
        return cls(outputs=run.outputs, funnel=as_text(run.results), stopped=run.stopped)

    def __getitem__(self, name: str) -> StageOutput:
        """An output.

        Raises:
            Stopped: the run ended before, as `execution.until` says.
        """
        if name not in self.outputs and self.stopped:
            raise Stopped(f"there is no {name} yet")
        return self.outputs[name]


def run_name(verb: str) -> Callable[[], str]:
    """Names a flow run by what it does: `train mini-crawl until packing`."""

    def name() -> str:
        settings = flow_run.parameters["settings"]
        chosen = settings.execution
        parts = [verb, settings.name]
        parts += ["from", chosen.from_stage] if chosen.from_stage else []
        parts += ["until", chosen.until] if chosen.until != STAGES[-1] else []
        return " ".join(parts)

    return name


def run_command(flow: Callable[[Settings], Outcome], arguments: list[str] | None = None) -> None:
    """Runs a flow as a command: exit code 0, 1 for an error in the run, 2 for wrong settings."""
    parser = argparse.ArgumentParser(description=flow.__doc__)
    parser.add_argument("preset", help=f"one of {', '.join(preset_names())}, or a .yaml file")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value", help="settings to change")
    chosen = parser.parse_args(arguments)
    try:
        settings = load_settings(chosen.preset, chosen.overrides)
        check_home()
    except TokenmillError as error:
        sys.exit(fail(error, 2))
    warm_up()
    errors_in_one_line()
    try:
        prefect_server.wait()
        with log_above_the_bar():
            outcome = flow(settings)
    except TokenmillError as error:
        sys.exit(fail(error, 1))
    except KeyboardInterrupt:
        print("interrupted: the same command goes on where this one stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception:
        check_disk_or_exit()
        raise
    print(summary(outcome))


def summary(outcome: Outcome) -> str:
    """Funnel, losses, a generated text, and the commands that open the two UIs."""
    store = open_store()
    parts = ["", outcome.funnel]
    if "checkpoint" in outcome.outputs:
        parts.append(_losses(store.report(outcome.outputs["checkpoint"])["measures"]))
    if "sample" in outcome.outputs:
        record = json.loads((store.path(outcome.outputs["sample"]) / "generation.json").read_text("utf-8"))
        parts.append(f"generated text (prompt {record['prompt']!r}):\n  {record['text']!r}")
    parts.append("outputs\n" + "\n".join(f"  {n}: {store.path(o)}" for n, o in outcome.outputs.items()))
    parts.append(_commands())
    return "\n\n".join(parts)


def _losses(measures: dict[str, Any]) -> str:
    return (
        f"losses over {measures['steps']} steps, vocabulary {measures['vocabulary_size']:,}: "
        f"training {measures['first_train_loss']:.3f} -> {measures['last_train_loss']:.3f}, "
        f"validation {measures['first_val_loss']:.3f} -> {measures['last_val_loss']:.3f}"
    )


def _commands() -> str:
    python = sys.executable
    return (
        "to look around (each command serves until Ctrl-C)\n"
        "  flows and tasks, http://127.0.0.1:4200\n"
        f"    PREFECT_HOME={home() / 'prefect'} DO_NOT_TRACK=1 {python} -m prefect server start\n"
        "  runs, datasets and curves, http://127.0.0.1:5000/?workflowType=machine_learning\n"
        "    MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false "
        f"{python} -m mlflow server --backend-store-uri {tracking_uri()} "
        f"--artifacts-destination {artifact_root()}"
    )


@contextlib.contextmanager
def log_above_the_bar() -> Iterator[None]:
    """On a terminal, log lines leave the progress bar where it is."""
    if not sys.stderr.isatty():
        yield
        return
    with logging_redirect_tqdm([logging.getLogger("prefect")]):
        yield


def errors_in_one_line() -> None:
    """Takes Prefect's traceback off the log of errors that say themselves what is wrong."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], TokenmillError):
        record.exc_info = None
    return True


def check_disk_or_exit() -> None:
    """Ends with a clear error if the disk is full: databases say it in a hundred ways."""
    try:
        check_home()
    except StoreError as error:
        sys.exit(fail(error, 1))


def fail(error: TokenmillError, code: int) -> int:
    """Prints an error as one line, and returns the exit code."""
    print(f"error: {error}", file=sys.stderr)
    return code
