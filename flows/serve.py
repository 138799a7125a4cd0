"""Everything for the UI in one command: `python -m flows.serve` (`bash infra/serve.sh` sets up first).

Starts Prefect's server and MLflow's, unless the environment names running ones (`PREFECT_API_URL`,
`MLFLOW_TRACKING_URI`), then the process that offers the deployments and runs what is asked of them. Prints
the addresses, starts again what dies, and stops all of it on Ctrl-C or SIGTERM. Listens on loopback only.
Further arguments go to `python -m flows.deployments`: `--preset FILE`, `--limit N`, `--watch-seconds N`, and
`--deploy-to POOL`, which only puts the deployments on a work pool of the server at `PREFECT_API_URL`.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flows.prefect_server import DATABASE_URLS, create_database
from pipeline_config.environment import check_home, home
from pipeline_config.errors import ServiceError, TokenmillError
from pipeline_config.processes import bound_command

HOST = "127.0.0.1"
START_SECONDS, STOP_SECONDS = 200.0, 15.0
POLL_SECONDS, LONGEST_PAUSE_SECONDS, STEADY_SECONDS, MOST_DEATHS = 0.2, 30.0, 120.0, 6
TAIL_CHARACTERS = 2000


@dataclass
class Service:
    """A process that is kept running.

    Args:
        ready: address that answers once it is ready; empty for one that nobody calls.
    """

    name: str
    command: Sequence[str]
    ready: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    deaths: int = 0

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return home() / "logs" / f"{self.name.lower().replace(' ', '-')}.log"

    def start(self) -> None:
        """Starts it, in a session of its own: Ctrl-C reaches this process alone."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log if self.ready else None,
                stderr=log if self.ready else None,
                env=os.environ | self.environment,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Waits until it answers.

        Raises:
            ServiceError: it ended, or does not answer in time.
        """
        deadline = time.monotonic() + START_SECONDS
        while not answers(self.ready):
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text("utf-8", "replace")[-TAIL_CHARACTERS:]
                raise ServiceError(f"{self.name} did not start. Its log {self.log} ends with:\n{tail}")
            time.sleep(POLL_SECONDS)

    def restart_if_dead(self) -> None:
        """Starts it again after a pause that grows with the number of deaths in a row.

        Raises:
            ServiceError: it dies again and again.
        """
        code = self.process.poll()
        if code is None:
            return
        steady = time.monotonic() - self.started > STEADY_SECONDS
        self.deaths = 1 if steady else self.deaths + 1
        if self.deaths > MOST_DEATHS:
            raise ServiceError(
                f"{self.name} ended {self.deaths} times in a row (last {code}): see {self.log}"
            )
        print(f"{self.name} ended ({_how(code)}): starting it again", flush=True)
        time.sleep(0 if self.deaths == 1 else min(2.0**self.deaths, LONGEST_PAUSE_SECONDS))
        self.start()

    def stop(self) -> None:
        """Asks it to end; kills it, with what it started, if it does not."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def answers(address: str) -> bool:
    """Whether a server is there and says that it is well."""
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)  # it is well, and asks who we are
    except OSError:
        return False


def servers(prefect_port: int, mlflow_port: int) -> list[Service]:
    """The servers that the environment does not name; their addresses are put into the environment.

    Raises:
        ServiceError: a port is in use.
    """
    found = []
    if not os.environ.get("PREFECT_API_URL"):
        check_port(prefect_port, "Prefect's server", "--prefect-port")
        found.append(_prefect(prefect_port))
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        check_port(mlflow_port, "MLflow's server", "--mlflow-port")
        found.append(_mlflow(mlflow_port))
    return found


def _prefect(port: int) -> Service:
    address = f"http://{HOST}:{port}"
    os.environ |= {"PREFECT_API_URL": f"{address}/api", "PREFECT_UI_URL": address}
    environment = {
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_UI_API_URL": "/api",  # as the browser sees it, behind whatever proxy
        # The newer UI shows no Retry button, starts runs without retries, and calls an analytics host.
        "PREFECT_SERVER_UI_V2_ENABLED": os.environ.get("PREFECT_SERVER_UI_V2_ENABLED", "false"),
    }
    command = bound_command("prefect", "server", "start")
    return Service("Prefect server", command, f"{address}/api/health", environment)


def _mlflow(port: int) -> Service:
    address = f"http://{HOST}:{port}"
    os.environ["MLFLOW_TRACKING_URI"] = address
    return Service("MLflow server", bound_command("flows.mlflow_server", str(port)), f"{address}/health")


def check_port(port: int, who: str, option: str) -> None:
    """Raises ServiceError if a port is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ServiceError(
                f"port {port} for {who}: {error.strerror}. Stop what listens there, or choose another port "
                f"with {option}"
            ) from None


def run_services(found: list[Service], runner: Service, on_ready: Callable[[], None]) -> None:
    """Starts servers and runner, and keeps them running until this process is told to stop."""
    try:
        for service in found:
            service.start()
        for service in found:
            service.wait_until_ready()
        runner.start()
        on_ready()
        while True:
            for service in [*found, runner]:
                service.restart_if_dead()
            time.sleep(POLL_SECONDS)
    finally:
        for service in [runner, *found]:  # first the runner: the runs it stops have something to say
            service.stop()


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = int(os.environ.get("PREFECT_SERVER_API_PORT", 4200))
    parser.add_argument("--prefect-port", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--mlflow-port", type=int, default=5000, help="(default: 5000)")
    chosen, more = parser.parse_known_args(arguments)
    if "--deploy-to" in more:  # served by workers elsewhere, and the servers are running
        os.execv(sys.executable, [sys.executable, "-m", "flows.deployments", *more])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        check_home()
        if not DATABASE_URLS & os.environ.keys():
            create_database()
        found = servers(chosen.prefect_port, chosen.mlflow_port)
        runner = Service("Deployments", bound_command("flows.deployments", *more))
        run_services(found, runner, _say_where)
    except TokenmillError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped", flush=True)


def _say_where() -> None:
    print(
        f"Prefect  {os.environ.get('PREFECT_UI_URL') or os.environ['PREFECT_API_URL']}\n"
        f"MLflow   {os.environ['MLFLOW_TRACKING_URI']}/?workflowType=machine_learning\n"
        f"data     {home()} (logs of the servers below logs/)\n"
        "Ctrl-C stops all of it.",
        flush=True,
    )


if __name__ == "__main__":
    main()
