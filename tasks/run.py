"""A pipeline run: settings, store, records, and the stages that ran so far."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from prefect.artifacts import create_link_artifact
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from pydantic import BaseModel

from pipeline_config.environment import home
from pipeline_config.settings import STAGES, Settings
from tasks.audit.marks import add_mark, marks_of
from tasks.events import announce
from tasks.funnel import as_markdown, as_sentence
from tasks.lineage import RunRecord, code_version, new_run_id, node_of, now
from tasks.patience import patiently
from tasks.progress import Page
from tasks.records import Records
from tasks.snapshots import with_snapshots
from tasks.sources import Origin
from tasks.stage import Report, Stage, StageResult, StageRunner, Work
from tasks.store import StageOutput, disk_errors, open_store

_active: ContextVar["Run | None"] = ContextVar("active_run", default=None)
T, U = TypeVar("T"), TypeVar("U")
CANCEL_SECONDS = 2.0  # for the last records of a run that is cancelled; what is left waits on disk


class Stopped(Exception):
    """The run is as far as `execution.until` says. Ends the flow's block, not the flow."""


class Run:
    """One pass through the pipeline; flows that call each other share it."""

    def __init__(self, settings: Settings):
        self.asked_for = settings
        self.log = get_run_logger()  # of the outermost flow: its page shows all
        self.settings = settings
        self.settings = settings = self.patiently(with_snapshots, settings)
        self.store = open_store()
        self.record = RunRecord(
            id=new_run_id(),
            name=settings.name,
            started=now(),
            code=code_version(),
            flow=str(flow_run.flow_name or ""),
            flow_run_id=str(flow_run.id or ""),
            settings=settings.model_dump(mode="json"),
        )
        self.runner = StageRunner(self.store, settings.execution, self.record.flow_run_id, self.log)
        self.record.save()
        self.records = Records(self.store, self.record)
        self.results: list[StageResult] = []
        self.funnel = Page("funnel", "What each stage kept", self.record.flow_run_id)
        self.outputs: dict[str, StageOutput] = {}
        self.stopped = False
        self.stage_records: dict[str, str] = {}
        self.pages: dict[str, tuple[str, str]] = {}
        self.refused = False
        self.marks: list[dict[str, str]] = []

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

        Raises:
            Stopped: the stage comes after the last one to run.
        """
        self._check_until(stage)
        tracking_run = self.records.start_stage(stage, label, settings)
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
                node = node_of(result.output, inputs)
                self.records.finish_stage(tracking_run, stage, result, node, origin)
        except BaseException as error:
            with contextlib.suppress(OSError):  # a full disk is told of already
                self.records.fail_stage(tracking_run, error)
            raise
        self._pass_marks_on(result.output, inputs, tracking_run)
        self.stage_records[stage.name] = tracking_run
        self.record.nodes.append(node)
        self.record.save()
        self.results.append(result)
        self.log.info(as_sentence(result))
        self.funnel.show(as_markdown(self.results))
        if not result.cached:
            announce(stage.name, result.output, self.settings.name)
        return result.output

    def _check_until(self, stage: Stage) -> None:
        until = self.settings.execution.until
        if stage.name in STAGES and STAGES.index(stage.name) > STAGES.index(until):
            self.stopped = True
            raise Stopped(f"{stage.name} comes after execution.until={until}")

    def patiently(self, ask: Callable[..., U], *arguments: Any) -> U:
        """What a question to a network or an object store gives, asked again if there is no answer.

        Raises:
            UnreachableError: there was none, again and again.
        """
        return patiently(ask, *arguments, retries=self.settings.execution.retries, log=self.log)

    def for_each(self, action: Callable[["Run", T], U], items: Iterable[T]) -> list[U]:
        """What the action gives for each item; each one goes as far as the run is to go.

        Raises:
            Stopped: one of them was stopped.
        """
        results, stops = [], []
        for item in items:
            try:
                results.append(action(self, item))
            except Stopped as stop:
                stops.append(stop)
        if stops:
            raise stops[0]
        return results

    def keep(self, name: str, output: StageOutput) -> StageOutput:
        """Makes an output part of the run's outcome, under a name."""
        self.outputs[name] = output
        return output

    def _pass_marks_on(self, output: StageOutput, inputs: Sequence[StageOutput], tracking_run: str) -> None:
        """Marks an output whose inputs are marked, and warns of it."""
        found = [mark for source in inputs for mark in marks_of(self.store, source.stage, source.key)]
        for mark in found:
            add_mark(self.store, output.stage, output.key, mark)
        for mark in marks_of(self.store, output.stage, output.key):
            self.marks.append(mark)
            self.records.warn(tracking_run, mark)
            self.log.warning("%s: %s (takedown %s)", output.stage, mark["what"], mark["takedown"][:12])

    def attach_page(self, output: StageOutput, name: str, title: str) -> None:
        """Links a page among the artifacts of a stage from the pages of the pipeline run."""
        record = self.records.artifacts_of(output) or self.stage_records[output.stage]
        self.pages[title] = (record, f"/artifacts/{name}")

    def refuse(self) -> None:
        """Says that the run's outputs must not be taken for a result: it ends as failed."""
        self.refused = True

    def finish(self, succeeded: bool, orderly: bool = True) -> None:
        """Closes the run and its records.

        Args:
            orderly: whether there is time to wait for servers; not so in a run that is cancelled.
        """
        succeeded = succeeded and not self.refused
        self.record.status = "finished" if succeeded else "failed"
        self.record.finished = now()
        self.record.save()
        if self.results:
            table = as_markdown(self.results)
            self.records.log_text(table, "funnel.md")
            self.records.describe_pipeline(table, self.pages)
        self.records.finish_pipeline(self.results, succeeded)
        self.records.close(None if orderly else CANCEL_SECONDS)
        if self.results and orderly:
            self.funnel.show(f"{table}\n\n{self._links()}")

    def _links(self) -> str:
        """Links from Prefect's page to MLflow's, as far as MLflow has the records."""
        places = {"this run in MLflow": ("", "")} | self.pages
        links = []
        for title, (record, part) in places.items():
            if address := self.records.page(record, part):
                key = title.lower().replace(" ", "-")
                create_link_artifact(address, link_text=title, key=key, description=title)
                links.append(f"[{title}]({address})")
        return " · ".join(links)


@contextlib.contextmanager
def open_run(settings: Settings) -> Iterator[Run]:
    """The run that is open in a calling flow, or a new one that ends with this block.

    The block is left early, without an error, where the run is as far as `execution.until` says.
    """
    active = _active.get()
    if active is not None and settings in (active.settings, active.asked_for):
        with contextlib.suppress(Stopped):
            yield active
        return
    with disk_errors(home()):
        run = Run(settings)
        run.records.start_pipeline(run.settings)
    token = _active.set(run)
    succeeded, orderly = False, True
    try:
        with contextlib.suppress(Stopped):
            yield run
        succeeded = True
    except BaseException as error:
        orderly = isinstance(error, Exception)
        raise
    finally:
        _active.reset(token)
        with disk_errors(home()), contextlib.suppress(*(() if succeeded else (OSError,))):
            run.finish(succeeded, orderly)
