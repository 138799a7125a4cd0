"""Which outputs a pipeline run is made of, and what each was made from: the thread that audits follow.

    <home>/runs/<id>.json    a record of a pipeline run, kept up to date while it runs

A stage's manifest names the content of its inputs; several outputs can have the same content and differ in
what they removed. So each run writes down which outputs it went through.
"""

import datetime
import importlib.metadata
import os
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from pipeline_config.environment import home
from pipeline_config.errors import AuditError
from pipeline_config.settings import Settings
from tasks.store import StageOutput, open_store, write_bytes, write_json

SHORTEST_REFERENCE = 6
CODE = Path(__file__).parents[1]


class Node(BaseModel):
    """A stage's output in a run, with the outputs that it was made from, each as `<stage>/<key>`."""

    stage: str
    label: str
    key: str
    digest: str
    inputs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`<stage>/<key>`: which output it is."""
        return f"{self.stage}/{self.key}"

    @property
    def output(self) -> StageOutput:
        """The output, as the store knows it."""
        return StageOutput(stage=self.stage, key=self.key, digest=self.digest, label=self.label)


def node_of(output: StageOutput, inputs: Sequence[StageOutput]) -> Node:
    """The node of an output."""
    return Node(**output.model_dump(), inputs=tuple(f"{i.stage}/{i.key}" for i in inputs))


class RunRecord(BaseModel):
    """A pipeline run: its settings, its code, and the outputs that it went through, in order."""

    id: str
    name: str
    status: Literal["running", "finished", "failed"] = "running"
    started: str
    finished: str | None = None
    code: str = ""
    flow: str = ""
    flow_run_id: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    nodes: list[Node] = Field(default_factory=list)

    def save(self) -> None:
        """Writes the record to the data folder."""
        runs_folder().mkdir(parents=True, exist_ok=True)
        path = runs_folder() / f"{self.id}.json"
        write_json(path, self.model_dump(mode="json"))
        if mirror := open_store().mirror:
            mirror.write_record(path)

    def at(self, stage: str) -> list[Node]:
        """The nodes of a stage."""
        return [node for node in self.nodes if node.stage == stage]

    def last(self, stage: str) -> Node | None:
        """The last node of a stage, or None where the run did not get there."""
        return next((node for node in reversed(self.nodes) if node.stage == stage), None)

    def upstream(self, node: Node) -> list[Node]:
        """The nodes that a node was made from, itself included, in the order of the run."""
        wanted = {node.name}
        for candidate in reversed(self.nodes):
            if candidate.name in wanted:
                wanted.update(candidate.inputs)
        return [candidate for candidate in self.nodes if candidate.name in wanted]


def runs_folder() -> Path:
    """Where the records of runs lie."""
    return home() / "runs"


def new_run_id() -> str:
    """An identity that sorts by time."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def all_runs() -> list[RunRecord]:
    """The records of all runs, oldest first; those of other machines that share a mirror, too."""
    if mirror := open_store().mirror:
        runs_folder().mkdir(parents=True, exist_ok=True)
        known = {path.name: path.stat().st_size for path in runs_folder().glob("*.json")}
        for name, data in mirror.read_records(known):
            path = runs_folder() / name
            if not path.is_file() or _read(path).status == "running":  # else what is here is the last word
                write_bytes(path, data)
    return [_read(path) for path in sorted(runs_folder().glob("*.json"))]


def find_run(reference: str = "latest") -> RunRecord:
    """The run that a reference names: `latest`, a run's id or name, or the key or digest of an output.

    Of several runs that fit, the newest that finished, else the newest. Keys, digests and ids may be cut to
    six characters.

    Raises:
        AuditError: no run fits.
    """
    runs = [run for run in all_runs() if run.nodes]
    reference = reference.strip().rstrip("/")
    short = reference.rpartition("/")[2]
    ended, others = (
        [run for run in reversed(runs) if (run.status == "finished") is finished]
        for finished in (True, False)
    )
    for run in [*ended, *others]:
        if reference == "latest" and run.status == "finished" and run.last("document_split"):
            return run
        if reference in (run.id, run.name) or _begins(run.id, short):
            return run
        if any(_begins(node.key, short) or _begins(node.digest, short) for node in run.nodes):
            return run
    known = ", ".join(f"{run.id} ({run.name}, {run.status})" for run in runs[-5:]) or "none"
    raise AuditError(
        f"no run fits {reference!r}. Give `latest`, the id or name of a run, or the key or digest of an "
        f"output. The last runs in {runs_folder()}: {known}"
    )


def corpus_version(name: str) -> int:
    """How many different corpora the finished runs of a name have made."""
    runs = [run for run in all_runs() if run.name == name and run.status == "finished"]
    return len({node.digest for run in runs for node in run.at("document_split")})


def portable_settings(settings: Settings) -> dict[str, Any]:
    """Settings without the places where things lie here: their content is named in the lineage."""
    values = settings.model_dump(mode="json", exclude={"execution"})
    for source in values["sources"]:
        for name in ("base", "takedown"):
            del source[name]
        for name in ("uris", "index"):
            source[name] = [_name_of(uri) for uri in source[name]]
        if source["dataset"]:
            source["dataset"] = _name_of(source["dataset"])
    rules = values["url_filtering"]
    del rules["ut1"]
    for name in ("blocklists", "allowlists"):
        rules[name] = [_name_of(place) for place in rules[name]]
    return values


def _name_of(place: str) -> str:
    """A path of this machine by its last part; other addresses as they are."""
    return Path(place).name if place.startswith(("/", "~", ".", "file:")) else place


def _begins(value: str, short: str) -> bool:
    return len(short) >= SHORTEST_REFERENCE and value.startswith(short)


def _read(path: Path) -> RunRecord:
    try:
        return RunRecord.model_validate_json(path.read_text("utf-8"))
    except ValueError as error:
        raise AuditError(f"the record {path} is damaged: {error}. Remove it, or put it back") from None


def code_version() -> str:
    """The commit of the code, with `-dirty` where files differ from it; else the package's version.

    An image has no repository: its build says the commit in `TOKENMILL_CODE`.
    """
    if built_from := os.environ.get("TOKENMILL_CODE"):
        return built_from
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(CODE), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, env=environment, check=True
        )
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return f"tokenmill {importlib.metadata.version('tokenmill')}"
