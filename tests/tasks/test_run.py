"""A pipeline run: how far it goes, what it shows, and what it leaves when it is cancelled."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from pipeline_config.errors import StageError
from pipeline_config.settings import Packing, Settings
from tasks.lineage import all_runs
from tasks.run import Run, Stopped, open_run
from tasks.stage import Stage, Work
from tasks.store import StageOutput

SOURCES = ("one", "two")
EARLY, MIDDLE, LATE = "url_filtering", "text_extraction", "deduplication"


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One data folder for the module: MLflow takes seconds to make its tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENMILL_HOME", str(tmp_path_factory.mktemp("runs")))
        yield


def settings(name: str, sources: tuple[str, ...] = SOURCES, **execution: Any) -> Settings:
    chosen = [{"name": source, "kind": "warc", "uris": [f"{source}.warc.gz"]} for source in sources]
    return Settings.model_validate({"name": name, "sources": chosen, "execution": execution})


def make(run: Run, stage: str, label: str, *inputs: StageOutput) -> StageOutput:
    """A stage of a pipeline: copies its label."""

    def build(work: Work) -> dict[str, Any]:
        (work.folder / "documents").mkdir()
        (work.folder / "documents" / "text").write_text(f"{run.settings.name} {work.label}")
        return {"read": 1, "kept": 1, "removed": {}, "failed": {}}

    content = [run.settings.name, label]
    return run.stage(Stage(stage, stage, 1), build, Packing(), label=label, inputs=inputs, content=content)


def clean(run: Run, source: Any) -> StageOutput:
    pointers = make(run, EARLY, source.name)
    if source.name == "breaks":
        raise StageError("it breaks")
    return make(run, MIDDLE, source.name, pointers)


@flow(name="test-inner")
def inner(chosen: Settings) -> dict[str, StageOutput]:
    with open_run(chosen) as run:
        cleaned = run.for_each(clean, run.settings.sources)
        run.keep("corpus", make(run, LATE, "all", *cleaned))
    return run.outputs


@flow(name="test-outer")
def outer(chosen: Settings) -> dict[str, Any]:
    with open_run(chosen) as run:
        made = inner(chosen)
        if "corpus" not in made:
            raise Stopped("as flows do")
        run.keep("shards", make(run, "packing", "all", made["corpus"]))
    return {"outputs": list(run.outputs), "stages": steps(run), "stopped": run.stopped, "id": run.record.id}


def steps(run: Run) -> list[str]:
    return [f"{result.output.stage} {result.output.label}" for result in run.results]


BOTH_EARLY = [f"{EARLY} one", f"{EARLY} two"]
BOTH = [f"{EARLY} one", f"{MIDDLE} one", f"{EARLY} two", f"{MIDDLE} two"]


@pytest.mark.parametrize(
    ("until", "stages", "outputs"),
    [
        pytest.param("sample_crawl", [], [], id="before the first"),
        pytest.param(EARLY, BOTH_EARLY, [], id="within each source: all sources get there"),
        pytest.param(MIDDLE, BOTH, [], id="the sources' last stage"),
        pytest.param(LATE, [*BOTH, f"{LATE} all"], ["corpus"], id="the inner flow's last stage"),
        pytest.param(
            "model_publication", [*BOTH, f"{LATE} all", "packing all"], ["corpus", "shards"], id="all"
        ),
    ],
)
def test_a_run_goes_as_far_as_it_was_told_and_ends_well(
    until: str, stages: list[str], outputs: list[str]
) -> None:
    ended = outer(settings(f"until-{until}", until=until))
    assert (ended["stages"], ended["outputs"]) == (stages, outputs)
    assert ended["stopped"] is (until != "model_publication")
    record = next(run for run in all_runs() if run.id == ended["id"])
    assert record.status == "finished"
    assert [f"{node.stage} {node.label}" for node in record.nodes] == stages


def test_a_run_that_ended_early_goes_on_from_there() -> None:
    outer(settings("goes-on", until=MIDDLE))

    @flow(name="test-outer")
    def again() -> list[bool]:
        with open_run(settings("goes-on")) as run:
            inner(settings("goes-on"))
        return [result.cached for result in run.results]

    assert again() == [True, True, True, True, False]


def test_an_error_in_one_source_ends_the_run_though_another_was_only_stopped() -> None:
    chosen = settings("breaks", ("one", "breaks"), until=EARLY)
    with pytest.raises(StageError, match="it breaks"):
        outer(chosen)
    assert all_runs()[-1].status == "failed"


def test_flows_of_the_same_settings_share_a_run_and_others_have_their_own() -> None:
    @flow(name="test-outer")
    def two() -> tuple[bool, bool]:
        with open_run(settings("shared")) as run:
            with open_run(settings("shared")) as same:
                pass
            with open_run(settings("another")) as other:
                pass
            return same is run, other is run

    assert two() == (True, False)


def test_a_flow_may_name_snapshots_by_their_pattern(tmp_path: Path) -> None:
    for dump in ("D1", "D2"):
        (tmp_path / dump).touch()
    source = {"name": "cc", "kind": "warc", "base": str(tmp_path), "uris": ["{dump}"], "dump": "D*"}
    chosen = Settings.model_validate({"name": "pattern", "sources": [source]})
    ended = outer(chosen)  # the inner flow is asked with the pattern, too, and takes part in the same run
    assert ended["stages"][:4] == [f"{stage} cc-{dump}" for dump in ("D1", "D2") for stage in (EARLY, MIDDLE)]
    assert [run.name for run in all_runs()].count("pattern") == 1


@pytest.mark.parametrize(
    ("error", "orderly"),
    [
        pytest.param(StageError("bug"), True, id="error"),
        pytest.param(KeyboardInterrupt(), False, id="cancelled"),
    ],
)
def test_a_run_that_is_left_by_an_error_ends_as_failed(
    error: BaseException, orderly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []

    @flow(name="test-outer")
    def broken() -> None:
        with open_run(settings("broken")) as run:
            close = run.records.close
            monkeypatch.setattr(
                run.records, "close", lambda seconds: (waited.append(seconds), close(seconds))
            )
            make(run, EARLY, "one")
            raise error

    with pytest.raises(type(error)):
        broken()
    assert (all_runs()[-1].name, all_runs()[-1].status) == ("broken", "failed")
    assert waited == ([None] if orderly else [2.0])


def test_the_funnel_grows_on_the_page_of_the_outermost_flow() -> None:
    pages: list[str] = []

    @flow(name="test-outer")
    def watched() -> None:
        with open_run(settings("watched")) as run:
            for source in run.settings.sources:
                make(run, EARLY, source.name)
                pages.append(funnel(UUID(run.record.flow_run_id)))

    watched()
    assert [page.count(EARLY) for page in pages] == [1, 2]


def funnel(flow_run: UUID) -> str:
    """The page `funnel` of a flow run."""
    with get_client(sync_client=True) as client:
        chosen = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
        found = client.read_artifacts(artifact_filter=chosen)
    (page,) = [artifact for artifact in found if artifact.key == "funnel"]
    return page.data
