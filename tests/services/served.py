"""Everything that `python -m flows.serve` serves, as a user starts it, and what a user does with it."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx

from pipeline_config.processes import bound_command
from tests.services.process import clean_environment, free_port

START_SECONDS, RUN_SECONDS = 150.0, 300.0
OWN = ("flows.serve", "flows.deployments", "flows.mlflow_server", "prefect server start", "moto.server")
ENDED = {"Completed", "Failed", "Crashed", "Cancelled"}


class Served:
    """The serving command on a data folder.

    Args:
        environment: variables beside those of the test process.
        arguments: of the command, beside the ports.
    """

    def __init__(self, home: Path, arguments: list[str], **environment: str):
        self.home = home
        self.ports = (free_port(), free_port())
        self.environment = clean_environment(TOKENMILL_HOME=str(home), **environment)
        ports = ["--prefect-port", str(self.ports[0]), "--mlflow-port", str(self.ports[1])]
        self.command = bound_command("flows.serve", *ports, *arguments)  # ends with the test process
        self.ui = f"http://127.0.0.1:{self.ports[0]}"
        self.mlflow = f"http://127.0.0.1:{self.ports[1]}"
        self.output = home / "serve.out"
        user, _, password = environment.get("PREFECT_API_AUTH_STRING", "").partition(":")
        self.account = (user, password) if user else None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until the deployments can be run."""
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdout=output, stderr=output, start_new_session=True
            )
        wait_for(lambda: "prefect deployment run" in self.said(), START_SECONDS, self.said)

    def said(self) -> str:
        """What the command printed so far."""
        return self.output.read_text("utf-8", "replace")

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        """Stops it; its exit code."""
        self.process.send_signal(how)
        return self.process.wait(60)

    def end(self) -> None:
        """Makes sure that nothing of it is left."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for process, _ in processes_of(self.home):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def api(self, method: str, path: str, **json: Any) -> Any:
        """The answer of Prefect's API, which may be starting again."""
        deadline = time.monotonic() + 60
        while True:
            try:
                address = f"{self.ui}/api/{path}"
                answer = httpx.request(method, address, json=json or None, timeout=30, auth=self.account)
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    answer.raise_for_status()
                    return answer.json() if answer.content else None
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, self.said()[-3000:]
            time.sleep(0.3)

    def deployment(self, flow: str, name: str) -> dict[str, Any]:
        """A deployment."""
        return self.api("GET", f"deployments/name/{flow}/{name}")

    def run(self, flow: str, name: str, changes: dict[str, Any] | None = None, **parameters: Any) -> str:
        """Starts a flow run; `changes` are settings by path. Returns its id."""
        found = self.deployment(flow, name)
        values = deepcopy(found["parameters"])
        for path, value in (changes or {}).items():
            *sections, last = path.split(".")
            target = values["settings"]
            for section in sections:
                target = target[section]
            target[last] = value
        made = self.api(
            "POST",
            f"deployments/{found['id']}/create_flow_run",
            parameters=values | parameters,
            state={"type": "SCHEDULED"},
        )
        return str(made["id"])

    def flow_run(self, run: str) -> dict[str, Any]:
        """A flow run."""
        return self.api("GET", f"flow_runs/{run}")

    def state(self, run: str) -> str:
        """The name of a flow run's state."""
        return str(self.flow_run(run)["state"]["name"])

    def ended(self, run: str, seconds: float = RUN_SECONDS) -> str:
        """The state in which a flow run ends."""
        wait_for(lambda: self.state(run) in ENDED, seconds, lambda: f"{self.state(run)}\n{self.said()}")
        return self.state(run)

    def artifacts(self, run: str, kind: str = "markdown") -> dict[str, Any]:
        """The artifacts of a flow run by key (or description)."""
        found = self.api("POST", "artifacts/filter", artifacts={"flow_run_id": {"any_": [run]}}, limit=200)
        return {a["key"] or a["description"]: a["data"] for a in found if a["type"] == kind}

    def log(self, run: str) -> str:
        """The log on a flow run's page."""
        lines = self.api("POST", "logs/filter", logs={"flow_run_id": {"any_": [run]}}, limit=200)
        return "\n".join(line["message"] for line in lines)


def wait_for(condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Waits for a condition; `what` says what is there instead."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()[-3000:]
        time.sleep(0.2)


def processes_of(home: Path) -> Iterator[tuple[int, str]]:
    """(process, command line) of all that work on a data folder, whoever their parent is by now."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"TOKENMILL_HOME={home}\0".encode() in (folder / "environ").read_bytes():
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                if line:  # else it is dead already
                    yield int(folder.name), line


def workers_of(home: Path) -> list[str]:
    """Command lines of the processes of flow runs."""
    return [line for _, line in processes_of(home) if not any(own in line for own in OWN)]
