"""compose.yaml without containers: its commands and environments, as real processes on this machine.

Only what containers bring along is replaced: addresses, ports, paths, and the names of the services.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from tests.services.postgres import Postgres
from tests.services.process import Server, Service, answers
from tests.services.servers import Factory, is_polling

INFRA = Path(__file__).parents[2] / "infra"


def commands(title: str) -> str:
    """The commands of OPERATING.md under a `# title`."""
    found = re.search(
        rf"```bash\n(# {title}\n.*?)```", (INFRA / "OPERATING.md").read_text("utf-8"), re.DOTALL
    )
    assert found, title
    return found[1]


@dataclass
class Stack:
    """The services of compose.yaml, and the secrets that they were given."""

    factory: Factory
    secrets: dict[str, str]
    services: dict[str, dict[str, Any]]
    folder: Path
    postgres: Postgres
    ports: dict[str, str]
    running: dict[str, Server] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """The working folder of all workers."""
        return self.folder / "data"

    def environment(self, name: str) -> dict[str, str]:
        """A service's, as compose.yaml has it."""
        found = {name: str(value) for name, value in self.services[name].get("environment", {}).items()}
        if "PGHOST" in found:
            found["PGPORT"] = str(self.postgres.port)
        if name == "postgres":
            return found | self.postgres.environment
        return found | {
            "TOKENMILL_HOME": str(self.home),
            "MLFLOW_AUTH_CONFIG_PATH": str(INFRA / "mlflow_auth.ini"),
        }

    def command(self, name: str) -> list[str]:
        """A service's: a module and its arguments, without `python -m`."""
        command = self.services[name]["command"]
        return (shlex.split(command) if isinstance(command, str) else command)[2:]

    def start_server(self, name: str, health: str) -> None:
        """Starts a server; `wait` for its service before it is used."""
        address = f"http://127.0.0.1:{self.ports[name]}"
        service = self.factory.start(
            self.command(name), answers(address + health), self.environment(name), wait=False
        )
        self.running[name] = Server(service, address, {})

    def start_worker(self, name: str, pool: str = "process", limit: int = 1, wait: bool = True) -> Service:
        """Starts a worker."""
        command = [word for word in self.command("worker") if word != "--with-healthcheck"]
        command[command.index("--pool") + 1] = pool
        command[command.index("--limit") + 1] = str(limit)
        environment = self.environment("worker") | {"PREFECT_WORKER_QUERY_SECONDS": "1"}
        return self.factory.start([*command, "--name", name], is_polling, environment, wait)

    def run(self, script: str, folder: Path) -> str:
        """What commands of OPERATING.md print, run in a folder, with a `docker` that is none."""
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment | {"PATH": path, "DO_NOT_TRACK": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def make_docker(self) -> None:
        """Makes a `docker compose exec|run SERVICE COMMAND` that runs the command here."""
        program = self.folder / "bin" / "docker"
        program.parent.mkdir()
        names = "|".join(self.services)
        program.write_text(
            f"#!/bin/bash\nset -euo pipefail\n"
            f"while :; do case $1 in {names}) break ;; *) shift ;; esac; done\n"
            f'set -a; . {program.parent}/"$1".env; set +a; shift\nexec "${{@//\\/data/{self.home}}}"\n'
        )
        program.chmod(0o755)
        for name in self.services:
            lines = [f"{key}={shlex.quote(value)}\n" for key, value in self.environment(name).items()]
            (program.parent / f"{name}.env").write_text("".join(lines))

    def client(self) -> SyncPrefectClient:
        """A client of the Prefect server."""
        environment = self.environment("worker")
        return SyncPrefectClient(
            environment["PREFECT_API_URL"], auth_string=environment["PREFECT_API_AUTH_STRING"]
        )

    def settings(self) -> contextlib.AbstractContextManager[Any]:
        """Within it, Prefect's own functions talk to that server."""
        environment = self.environment("worker")
        return temporary_settings(
            {
                PREFECT_API_URL: environment["PREFECT_API_URL"],
                PREFECT_API_AUTH_STRING: environment["PREFECT_API_AUTH_STRING"],
            }
        )


def filled_in(folder: Path) -> dict[str, str]:
    """The secrets that OPERATING.md's command makes up."""
    (folder / "infra").mkdir()
    (folder / "infra" / ".env.example").write_bytes((INFRA / ".env.example").read_bytes())
    subprocess.run(["bash", "-euc", commands("fill in")], cwd=folder, check=True)
    made = folder / "infra" / ".env"
    assert made.stat().st_mode & 0o077 == 0
    lines = (
        line.partition("=") for line in made.read_text("utf-8").splitlines() if line[:1] not in ("#", "")
    )
    return {name: value for name, _, value in lines}


def composed(secrets: dict[str, str], addresses: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The services of compose.yaml with its variables filled in and other addresses."""
    text = (INFRA / "compose.yaml").read_text("utf-8")
    text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: secrets[match[1]], text)
    text = re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", text)
    for old, new in addresses.items():
        assert old in text, old
        text = text.replace(old, new)
    return dict(yaml.safe_load(text)["services"])
