"""A real service and its processes, which end with the test process, whichever way that ends."""

import base64
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

START_SECONDS, STOP_SECONDS = 120, 15
FOREIGN = ("PREFECT_", "MLFLOW_", "AWS_", "PG", "TOKENMILL_STORE")  # the session's own setup
# The pipe on which `read` waits ends with the test process.
GUARD = """# ends the whole process group when its starter or the service has ended
exec 3<&0
"$@" </dev/null & service=$!
{ read -r _ <&3; kill -KILL 0; } &
wait $service
kill -KILL 0
"""


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without the services that it names, and with what is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return kept | {"PYTHONUNBUFFERED": "1"} | more


def new_secret() -> str:
    """A secret to look for where it must not be."""
    return f"secret{secrets.token_hex(12)}"


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Service:
    """A program and all that it starts, in a process group of its own.

    Args:
        ready: whether it does its work yet; asked until it does.
        user: who it runs as, where we are root.
    """

    def __init__(
        self,
        command: list[str],
        log: Path,
        environment: Mapping[str, str],
        ready: Callable[["Service"], bool],
        stop_signal: signal.Signals = signal.SIGTERM,
        folder: Path | None = None,
        user: str | None = None,
    ):
        self.command, self.log, self.environment = command, log, dict(environment)
        self.ready, self.stop_signal, self.folder, self.user = ready, stop_signal, folder, user
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> None:
        """Starts it; what it prints is added to `log`."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", GUARD, "guard", *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
                user=self.user,
                group=self.user,
                extra_groups=[] if self.user else None,
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Waits until it is ready."""
        deadline = time.monotonic() + START_SECONDS
        while not self.ready(self):
            if self.ended() or time.monotonic() > deadline:
                self.kill()
                pytest.fail(
                    f"{' '.join(self.command[:8])} did not start. Its log ends:\n{self.text()[-3000:]}"
                )
            time.sleep(0.1)

    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return self.process is None or self.process.poll() is not None

    def text(self) -> str:
        """All that it has printed."""
        return self.log.read_text("utf-8", "replace")

    def pids(self) -> set[int]:
        """Its processes that are alive."""
        group, found = self.process.pid if self.process else 0, set()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
                guard = GUARD.encode() in (folder / "cmdline").read_bytes()
                if int(of) == group and state != "Z" and not guard:
                    found.add(int(folder.name))
        return found

    def listening(self) -> set[str]:
        """Where its processes accept connections, as /proc/net/tcp writes it: `0100007F:1068`."""
        sockets, found = set(), set()
        for link in (link for pid in self.pids() for link in Path(f"/proc/{pid}/fd").glob("*")):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(link))
        for name in ("tcp", "tcp6"):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == "0A" and f"socket:[{inode}]" in sockets:
                    found.add(local)
        return found

    def stop(self) -> None:
        """Asks it to end, and makes it end after a while."""
        self._signal(self.stop_signal)
        deadline = time.monotonic() + STOP_SECONDS
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to all its processes at once."""
        self._signal(signal.SIGKILL)
        if self.process and self.process.stdin:
            self.process.wait()
            self.process.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


@dataclass
class Server:
    """A server that speaks HTTP: `environment` is what its clients need, credentials included."""

    service: Service
    address: str
    environment: dict[str, str]

    def status(self, path: str, credentials: str = "", **headers: str) -> int:
        """The HTTP status of a GET request, as somebody (`user:password`) or nobody."""
        request = urllib.request.Request(self.address + path, headers=headers)
        if credentials:
            encoded = base64.b64encode(credentials.encode()).decode()
            request.add_header("Authorization", f"Basic {encoded}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


def answers(address: str) -> Callable[[Service], bool]:
    """Whether an address answers, as `Service` asks it."""

    def ask(_: Service) -> bool:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return True
        except OSError:
            return False

    return ask
