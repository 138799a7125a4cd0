"""Stages: what their key depends on, what is computed again, and what a failure leaves."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.context import get_run_context
from pydantic import BaseModel

from pipeline_config.errors import (
    CanaryError,
    LedgerError,
    LimitError,
    SettingsError,
    SourceError,
    StageError,
    UnreachableError,
)
from pipeline_config.settings import Execution
from tasks.mirror import Mirror
from tasks.stage import Stage, StageResult, StageRunner, Work, check_books, library_versions, sum_shards
from tasks.store import Store, digest_of

STAGE = Stage("writing", "Write text", version=1)
FILE = "documents/part-00000.txt"


class Choice(BaseModel):
    """Settings of the tests' stage."""

    text: str = "text"


class Writer:
    """Builds a stage of one file, and counts how often."""

    def __init__(self, **report: Any):
        self.report = {"read": 3, "kept": 2, "removed": {"short": 1}, "failed": {}} | report
        self.built = 0

    def __call__(self, work: Work) -> dict[str, Any]:
        self.built += 1
        (work.folder / "documents").mkdir(exist_ok=True)
        (work.folder / FILE).write_text(work.settings.text)
        return dict(self.report)


def in_flow(action: Callable[[], Any]) -> Any:
    """Runs something inside a Prefect flow, as stages are."""

    @flow(name="test-stage")
    def body() -> Any:
        return action()

    return body()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def runner(store: Store) -> StageRunner:
    return StageRunner(store, Execution())


def leftovers(store: Store) -> list[str]:
    return sorted(path.name for path in (store.root / STAGE.name).glob("*"))


def key(stage: Stage = STAGE, text: str = "text", content: tuple[Any, ...] = ()) -> str:
    return digest_of(stage.recipe(Choice(text=text), content))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"text": "other"}, id="settings"),
        pytest.param({"stage": Stage("writing", "Write text", version=2)}, id="version"),
        pytest.param({"stage": Stage("reading", "Write text", version=1)}, id="name"),
        pytest.param({"stage": Stage("writing", "Write text", 1, libraries=("numpy",))}, id="libraries"),
        pytest.param({"content": ("digest",)}, id="content"),
    ],
)
def test_the_key_changes_with_what_determines_the_output(changed: dict[str, Any]) -> None:
    assert key(**changed) != key()


def test_the_key_does_not_change_with_how_a_stage_is_called_or_shown() -> None:
    assert key(Stage("writing", "Another title", version=1, artifacts=("x",))) == key()


def test_the_key_changes_with_the_version_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage("writing", "Write text", version=1, libraries=("numpy",))
    before = key(stage)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99.9")
    assert key(stage) != before


def test_the_key_depends_on_the_order_of_the_inputs() -> None:
    assert key(content=("a", "b")) != key(content=("b", "a"))


def test_a_library_that_is_missing_is_named() -> None:
    with pytest.raises(StageError, match="package no-such-package is not installed"):
        library_versions(["no-such-package"])


def test_a_second_run_is_cached_whatever_the_execution(store: Store) -> None:
    writer = Writer()
    elsewhere = {"kind": "ray", "ray": {"address": "head:6379"}}
    executions = Execution(workers=1), Execution(workers=7, max_failed_share=0.9, executor=elsewhere)

    def twice() -> tuple[UUID, list[StageResult]]:
        results = [StageRunner(store, e).run(STAGE, writer, Choice()) for e in executions]
        return get_run_context().flow_run.id, results

    flow_run_id, (first, second) = in_flow(twice)
    assert (first.cached, second.cached, writer.built) == (False, True, 1)
    assert (first.output, first.report) == (second.output, second.report)
    assert state_names(flow_run_id) == ["Cached", "Completed"]


def state_names(flow_run_id: UUID) -> list[str]:
    """Final states of a flow run's tasks, as the server has them; it hears of them with a delay."""
    deadline = time.monotonic() + 20
    with get_client(sync_client=True) as client:
        while True:
            runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [flow_run_id]}))
            if (len(runs) == 2 and all(run.state.is_final() for run in runs)) or time.monotonic() > deadline:
                return sorted(run.state.name for run in runs)
            time.sleep(0.2)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(shutil.rmtree, id="deleted folder"),
        pytest.param(lambda folder: os.truncate(folder / FILE, 1), id="cut shard"),
        pytest.param(lambda folder: (folder / FILE).unlink(), id="deleted shard"),
        pytest.param(lambda folder: (folder / "manifest.json").unlink(), id="deleted manifest"),
    ],
)
def test_a_damaged_output_is_computed_again(
    store: Store, runner: StageRunner, damage: Callable[[Path], None]
) -> None:
    writer = Writer()

    def twice() -> list[StageResult]:
        first = runner.run(STAGE, writer, Choice())
        damage(store.path(first.output))
        return [first, runner.run(STAGE, writer, Choice())]

    first, second = in_flow(twice)
    assert (second.cached, writer.built) == (False, 2)
    assert second.output == first.output
    assert (store.path(second.output) / FILE).read_text() == "text"


def test_a_lost_record_of_prefect_does_not_compute_again(store: Store, runner: StageRunner) -> None:
    writer = Writer()

    def twice() -> list[StageResult]:
        first = runner.run(STAGE, writer, Choice())
        (store.path(first.output) / "_prefect").unlink()
        return [first, runner.run(STAGE, writer, Choice())]

    first, second = in_flow(twice)
    assert (second.output, writer.built) == (first.output, 1)


def test_a_change_upstream_that_gives_the_same_bytes_stops_there(runner: StageRunner) -> None:
    upper, lower = Stage("upper", "Upper", version=1), Stage("lower", "Lower", version=1)
    downstream = Writer()

    def run(text: str, version: int) -> StageResult:
        stage = Stage(upper.name, upper.title, version)
        above = runner.run(stage, Writer(), Choice(text=text)).output
        return runner.run(lower, downstream, Choice(), inputs=[above])

    results = in_flow(lambda: [run("same", 1), run("same", 2), run("other", 2)])
    assert [result.cached for result in results] == [False, True, False]
    assert results[0].output.key == results[1].output.key != results[2].output.key
    assert downstream.built == 2


def test_a_failed_build_leaves_nothing_and_may_be_tried_again(store: Store, runner: StageRunner) -> None:
    def fail(work: Work) -> dict[str, Any]:
        (work.folder / "half.txt").write_text("half")
        raise StageError("no more")

    with pytest.raises(StageError, match="no more"):
        in_flow(lambda: runner.run(STAGE, fail, Choice()))
    assert leftovers(store) == []
    result = in_flow(lambda: runner.run(STAGE, Writer(), Choice()))
    assert [file["path"] for file in store.manifest(result.output)["files"]] == [FILE, "report.json"]


def test_an_interrupted_build_goes_on_where_it_was(store: Store, runner: StageRunner) -> None:
    def interrupt(work: Work) -> dict[str, Any]:
        (work.folder / "half.txt").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_flow(lambda: runner.run(STAGE, interrupt, Choice()))
    (building,) = (store.root / STAGE.name).glob("*")
    assert [path.name for path in building.iterdir()] == ["half.txt"]
    result = in_flow(lambda: runner.run(STAGE, Writer(), Choice()))
    assert (store.path(result.output) / "half.txt").read_text() == "half"
    assert not building.exists()


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once."""
    monkeypatch.setattr("tasks.stage.BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr("tasks.patience.BACKOFF_SECONDS", 0.01)


class Failing:
    """Finishes one shard more at each attempt, and fails until it was tried often enough."""

    def __init__(self, error: Exception, attempts: int = 3):
        self.error, self.attempts = error, attempts
        self.found: list[list[str]] = []

    def __call__(self, work: Work) -> dict[str, Any]:
        (work.folder / "documents").mkdir(exist_ok=True)
        self.found.append(sorted(path.name for path in (work.folder / "documents").iterdir()))
        (work.folder / "documents" / f"{len(self.found)}.txt").write_text("shard")
        if len(self.found) < self.attempts:
            raise self.error
        return {}


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize(
    "error",
    [
        pytest.param(UnreachableError("the store is away"), id="ours"),
        pytest.param(ConnectionResetError("gone"), id="a library's"),
    ],
)
def test_what_may_pass_is_tried_again_with_the_finished_shards_kept(
    store: Store, runner: StageRunner, error: Exception
) -> None:
    failing = Failing(error)
    result = in_flow(lambda: runner.run(STAGE, failing, Choice()))
    assert failing.found == [[], ["1.txt"], ["1.txt", "2.txt"]]
    files = [file["path"] for file in store.manifest(result.output)["files"]]
    assert files == ["documents/1.txt", "documents/2.txt", "documents/3.txt", "report.json"]
    assert (result.cached, leftovers(store)) == (False, [result.output.key])


@pytest.mark.usefixtures("_no_waiting")
def test_a_stage_is_tried_as_often_as_the_settings_say_and_a_rerun_goes_on(store: Store) -> None:
    failing = Failing(UnreachableError("the store is away"), attempts=5)
    runner = StageRunner(store, Execution(retries=2))
    with pytest.raises(UnreachableError, match="the store is away"):
        in_flow(lambda: runner.run(STAGE, failing, Choice()))
    assert len(failing.found) == 3
    in_flow(lambda: runner.run(STAGE, failing, Choice()))
    assert failing.found[-1] == ["1.txt", "2.txt", "3.txt", "4.txt"]


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize(
    ("error", "kept"),
    [
        pytest.param(LedgerError("books"), False, id="books"),
        pytest.param(SettingsError("value"), False, id="settings"),
        pytest.param(SourceError("no file"), False, id="source"),
        pytest.param(ValueError("bug"), False, id="bug"),
        pytest.param(LimitError("too long"), True, id="limit: what was finished is kept"),
    ],
)
def test_what_does_not_pass_is_not_tried_again(
    store: Store, runner: StageRunner, error: Exception, kept: bool
) -> None:
    failing = Failing(error)
    with pytest.raises(type(error), match=str(error)):
        in_flow(lambda: runner.run(STAGE, failing, Choice()))
    assert failing.found == [[]]
    assert leftovers(store) == ([f".{key()}.building"] if kept else [])


FRESH = Stage("packing", "Pack", version=1)


def again(store: Store, **execution: Any) -> StageRunner:
    return StageRunner(store, Execution(**execution))


@pytest.mark.parametrize(
    ("first", "built"),
    [
        pytest.param("bpe_training", 2, id="after it"),
        pytest.param("packing", 2, id="itself"),
        pytest.param("training", 1, id="before it"),
        pytest.param(None, 1, id="none"),
    ],
)
def test_stages_from_the_chosen_one_on_are_computed_again(
    store: Store, runner: StageRunner, first: str | None, built: int
) -> None:
    writer = Writer()
    one = in_flow(lambda: runner.run(FRESH, writer, Choice(), label="x"))
    two = in_flow(lambda: again(store, from_stage=first).run(FRESH, writer, Choice(), label="x"))
    assert (writer.built, two.cached, two.output) == (built, built == 1, one.output)
    three = in_flow(lambda: runner.run(FRESH, writer, Choice(), label="x"))
    assert (writer.built, three.cached) == (built, True)


def test_what_is_computed_again_with_other_bytes_is_an_error_and_replaces_nothing(
    store: Store, runner: StageRunner
) -> None:
    output = in_flow(lambda: runner.run(FRESH, Writer(), Choice())).output
    before = (store.path(output) / "manifest.json").read_bytes()

    def other(work: Work) -> dict[str, Any]:
        report = Writer()(work)
        (work.folder / FILE).write_text("texT")
        return report

    with pytest.raises(StageError, match=rf"computed again, differs .*/packing/{output.key} in {FILE}"):
        in_flow(lambda: again(store, from_stage="packing").run(FRESH, other, Choice()))
    assert (store.path(output) / "manifest.json").read_bytes() == before
    assert (store.path(output) / FILE).read_text() == "text"
    assert [path.name for path in store.path(output).parent.iterdir()] == [output.key]
    writer = Writer()
    assert in_flow(lambda: runner.run(FRESH, writer, Choice())).cached
    assert writer.built == 0


def test_what_is_computed_again_and_fails_leaves_the_output_as_it_was(
    store: Store, runner: StageRunner
) -> None:
    output = in_flow(lambda: runner.run(FRESH, Writer(), Choice())).output
    with pytest.raises(LedgerError):
        in_flow(lambda: again(store, from_stage="packing").run(FRESH, Writer(kept=1), Choice()))
    assert store.find(output.stage, output.key) == output
    assert [path.name for path in store.path(output).parent.iterdir()] == [output.key]


def machine(tmp_path: Path, name: str, **execution: Any) -> StageRunner:
    """A machine that shares its store with others."""
    store = Store(tmp_path / name / "store", Mirror(f"file://{tmp_path}/mirror"))
    return StageRunner(store, Execution(**execution))


def test_what_one_machine_computed_no_other_one_computes(tmp_path: Path) -> None:
    here, there, writer = machine(tmp_path, "here"), machine(tmp_path, "there"), Writer()
    first = in_flow(lambda: here.run(STAGE, writer, Choice(), label="a"))
    second = in_flow(lambda: there.run(STAGE, writer, Choice(), label="b"))
    assert (writer.built, first.cached, second.cached) == (1, False, True)
    assert (second.output.key, second.output.digest) == (first.output.key, first.output.digest)
    assert second.computing_seconds == first.computing_seconds
    assert (there.store.path(second.output) / FILE).read_text() == "text"


def test_an_output_from_before_there_was_a_mirror_is_shared(tmp_path: Path) -> None:
    here, writer = machine(tmp_path, "here"), Writer()
    alone = StageRunner(Store(here.store.root), Execution())
    in_flow(lambda: alone.run(STAGE, writer, Choice()))
    in_flow(lambda: here.run(STAGE, writer, Choice()))
    in_flow(lambda: machine(tmp_path, "there").run(STAGE, writer, Choice()))
    assert writer.built == 1


def test_an_output_that_a_machine_computes_again_is_compared_with_the_shared_one(tmp_path: Path) -> None:
    here, there = machine(tmp_path, "here"), machine(tmp_path, "there", from_stage="packing")
    in_flow(lambda: here.run(FRESH, Writer(), Choice()))
    writer = Writer(kept=1, removed={"short": 2})
    with pytest.raises(StageError, match=r"computed again, differs .* in report\.json"):
        in_flow(lambda: there.run(FRESH, writer, Choice()))
    assert writer.built == 1
    assert there.store.find(FRESH.name, here.store.folders()[0].name) is not None


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("from_before", [False, True], ids=["computed", "from before there was a mirror"])
def test_an_object_store_that_is_away_for_a_while_costs_no_second_computation(
    tmp_path: Path, from_before: bool
) -> None:
    here, writer, refused = machine(tmp_path, "here"), Writer(), []
    if from_before:
        in_flow(lambda: StageRunner(Store(here.store.root), Execution()).run(STAGE, writer, Choice()))
    publish = here.store.mirror.publish

    def away(*output: Any) -> None:
        if len(refused) < 2:
            refused.append(output)
            raise UnreachableError("the object store is away")
        publish(*output)

    here.store.mirror.publish = away
    result = in_flow(lambda: here.run(STAGE, writer, Choice()))
    assert (writer.built, len(refused), result.cached) == (1, 2, from_before)
    assert here.store.mirror.holds(STAGE.name, result.output.key)


def test_the_rules_of_a_stage_are_those_of_the_settings(store: Store) -> None:
    seen: list[tuple[float, int | None, int | None]] = []

    def build(work: Work) -> dict[str, Any]:
        left = work.rules.deadline - time.monotonic()
        seen.append((left, work.rules.max_seconds, work.rules.max_memory_bytes))
        return Writer()(work)

    in_flow(lambda: again(store).run(STAGE, build, Choice(text="free")))
    limits = {"max_stage_seconds": 900, "max_stage_memory_bytes": 10**9}
    in_flow(lambda: again(store, **limits).run(STAGE, build, Choice()))
    assert seen[0] == (float("inf"), None, None)
    assert 800 < seen[1][0] <= 900
    assert seen[1][1:] == (900, 10**9)


def test_what_only_the_making_needed_is_not_in_the_output(store: Store, runner: StageRunner) -> None:
    def build(work: Work) -> dict[str, Any]:
        hidden = "scratch/b/.c.77", "documents/.part-00000.parquet.77"
        for name in ("logs/a", "shards/00000.json", "scratch/b/c", *hidden):
            (work.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (work.folder / name).write_text("x")
        return Writer()(work)

    output = in_flow(lambda: runner.run(STAGE, build, Choice())).output
    files = {
        p.relative_to(store.path(output)).as_posix() for p in store.path(output).rglob("*") if p.is_file()
    }
    assert files == {FILE, "manifest.json", "report.json", "_computation.json", "_prefect"}
    assert store.computation(output)["seconds"] >= 0


@pytest.mark.parametrize(
    ("report", "error", "words"),
    [
        pytest.param({"kept": 1}, LedgerError, "read 3 != kept 1 .* removed 1 .* failed 0", id="unbalanced"),
        pytest.param(
            {"kept": 1, "removed": {}, "failed": {"error:ValueError": 2}},
            CanaryError,
            r"2 of 3 records failed \(67%\), more than execution.max_failed_share=20%: error:ValueError 2",
            id="too many failures",
        ),
        pytest.param(
            {"kept": 0, "removed": {"short": 1, "long": 2}},
            CanaryError,
            "nothing was kept of 3 records: long 2, short 1",
            id="nothing kept",
        ),
        pytest.param(
            {"read": 0, "kept": 0, "removed": {}}, CanaryError, "there was no input", id="nothing read"
        ),
    ],
)
def test_implausible_books_are_refused_and_leave_nothing(
    store: Store, runner: StageRunner, report: dict[str, Any], error: type[StageError], words: str
) -> None:
    with pytest.raises(StageError, match=words) as caught:
        in_flow(lambda: runner.run(STAGE, Writer(**report), Choice(), label="crawl"))
    assert type(caught.value) is error
    assert "Write text" in str(caught.value)
    assert "crawl" in str(caught.value)
    assert leftovers(store) == []


def test_as_many_failures_as_allowed_are_allowed() -> None:
    report = {"read": 10, "kept": 8, "removed": {}, "failed": {"x": 2}}
    check_books(report, "stage", 0.2)
    with pytest.raises(CanaryError):
        check_books(report, "stage", 0.19)


def test_a_stage_without_records_has_no_books() -> None:
    check_books({"measures": {"steps": 3}}, "stage", 0.0)


def test_a_stricter_limit_applies_to_a_cached_output_too(store: Store) -> None:
    writer = Writer(kept=1, failed={"x": 1})
    in_flow(lambda: StageRunner(store, Execution(max_failed_share=0.5)).run(STAGE, writer, Choice()))
    with pytest.raises(CanaryError, match="max_failed_share=10%"):
        in_flow(lambda: StageRunner(store, Execution(max_failed_share=0.1)).run(STAGE, writer, Choice()))


def test_a_cached_output_has_the_label_of_its_caller(runner: StageRunner) -> None:
    writer = Writer()
    results = in_flow(lambda: [runner.run(STAGE, writer, Choice(), label=x) for x in ("one", "two {x}", "")])
    assert [result.output.label for result in results] == ["one", "two {x}", ""]
    assert len({result.output.digest for result in results}) == 1
    assert writer.built == 1


def test_the_counts_of_shards_are_summed(tmp_path: Path) -> None:
    one = {"read": 3, "kept": 2, "text_bytes": 9, "removed": {"b": 1}, "failed": {}, "measures": {"m": 1}}
    two = {
        "read": 4,
        "kept": 1,
        "text_bytes": 1,
        "removed": {"b": 1, "a": 1},
        "failed": {"e": 1},
        "measures": {},
    }
    for rank, books in enumerate((one, two)):
        (tmp_path / f"{rank:05d}.json").write_text(json.dumps(books))
    report = sum_shards(tmp_path, 2)
    assert {name: report[name] for name in ("read", "kept", "text_bytes")} == {
        **{"read": 7, "kept": 3, "text_bytes": 10}
    }
    assert list(report["removed"].items()) == [("a", 1), ("b", 2)]
    assert (report["failed"], report["measures"]) == ({"e": 1}, {"m": 1})


def test_a_shard_without_books_is_refused(tmp_path: Path) -> None:
    (tmp_path / "00000.json").write_text("{}")
    with pytest.raises(LedgerError, match="shard 1 of 2 has no books"):
        sum_shards(tmp_path, 2)


AT_ONCE = """
import sys, time
from pathlib import Path
from prefect import flow
from pipeline_config.settings import Execution, Packing
from tasks.stage import Stage, StageRunner
from tasks.store import Store

root, name = Path(sys.argv[1]), sys.argv[2]

def build(work):
    with (root / "built.txt").open("a") as file:
        file.write(name)
    time.sleep(2)
    (work.folder / "file.txt").write_text("text")
    return {}

@flow
def race():
    (root / name).touch()
    while not all((root / other).exists() for other in "ab"):
        time.sleep(0.01)
    return StageRunner(Store(root / "store"), Execution()).run(Stage("race", "Race", 1), build, Packing())

result = race()
print(result.cached, result.output.digest)
"""


def test_two_processes_at_once_compute_once(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE, str(tmp_path), name], stdout=subprocess.PIPE, text=True
        )
        for name in "ab"
    ]
    printed = [process.communicate(timeout=90)[0].split() for process in processes]
    assert len((tmp_path / "built.txt").read_text()) == 1
    assert sorted(cached for cached, _ in printed) == ["False", "True"]
    assert printed[0][1] == printed[1][1]
