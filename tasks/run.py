"""A pipeline run: settings, store, records, and the stages that ran so far."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger
from pydantic import BaseModel

from pipeline_config.environment import home
from pipeline_config.settings import Settings
from tasks.funnel import as_markdown, as_sentence
from tasks.sources import Origin
from tasks.stage import Report, Stage, StageResult, StageRunner, Work
from tasks.store import StageOutput, Store, disk_errors

_active: ContextVar["Run | None"] = ContextVar("active_run", default=None)


class Run:
    """One pass through the pipeline; flows that call each other share it."""

    def __init__(self, settings: Settings):
        from tasks.provenance import Provenance  # MLflow takes seconds to import; see warm_up()

        self.settings = settings
        self.store = Store(home() / "store")
        self.runner = StageRunner(self.store, settings.execution)
        self.provenance = Provenance(self.store)
        self.results: list[StageResult] = []

    def stage(
        self,
        stage: Stage,
        build: Callable[[Work], Report],
        settings: BaseModel,
        *,
        label: str = "",
        inputs: Sequence[StageOutput] = (),
        content: Sequence[Any] = (),
        origin: Origin | None = None,
    ) -> StageOutput:
        """The output of a stage, computed or from the store, and recorded either way.

        Args:
            inputs: outputs of other stages; their content digests are part of the key.
            content: whatever else determines the output, as plain data.
            origin: where content from outside the store came from, for the records.
        """
        tracking_run = self.provenance.start_stage(stage, label, settings)
        try:
            with disk_errors(self.store.root):
                result = self.runner.run(
                    stage,
                    build,
                    settings,
                    label=label,
                    inputs=inputs,
                    content=content,
                    tracking_run=tracking_run,
                )
                self.provenance.finish_stage(tracking_run, stage, result, list(inputs), origin)
        except BaseException as error:
            self.provenance.fail_stage(tracking_run, error)
            raise
        self.results.append(result)
        get_run_logger().info(as_sentence(result))
        return result.output


def warm_up() -> None:
    """Imports MLflow and opens its database in the background, while Prefect's server starts."""

    def open_records() -> None:
        from tasks.provenance import Provenance

        with contextlib.suppress(Exception):  # the run itself meets the same problem, and says so
            Provenance(Store(home() / "store"))

    threading.Thread(target=open_records, daemon=True).start()


@contextlib.contextmanager
def open_run(settings: Settings) -> Iterator[Run]:
    """The run that is open in a calling flow, or a new one that ends with this block."""
    active = _active.get()
    if active is not None and active.settings == settings:
        yield active
        return
    with disk_errors(home()):
        run = Run(settings)
        run.provenance.start_pipeline(settings)
    token = _active.set(run)
    succeeded = False
    try:
        yield run
        succeeded = True
    finally:
        _active.reset(token)
        if run.results:
            table = as_markdown(run.results)
            create_markdown_artifact(key="funnel", markdown=table, description="What each stage kept")
            run.provenance.log_text(table, "funnel.md")
        run.provenance.finish_pipeline(run.results, succeeded)
