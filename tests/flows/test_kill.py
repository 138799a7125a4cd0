"""kill -9 of the flow process at random moments: a rerun ends as if nothing had happened."""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.command_line import INTERRUPTED
from tests.outputs import manifests

Start = Callable[..., subprocess.Popen[str]]
KILLS, CHAINS, SEED = 20, 2, 20261129
SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 25.0  # from the imports to the training
STOP_SECONDS = 10


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]


def processes_of(home: Path) -> list[str]:
    """Command lines of all processes that work on a data folder, whoever their parent is by now."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(home).encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.mark.slow
def test_twenty_kills_change_nothing(command: Start, tiny_run: SimpleNamespace, tmp_path: Path):
    with ThreadPoolExecutor(CHAINS) as chains:
        list(chains.map(lambda n: kill_often(command, tiny_run, tmp_path / f"chain-{n}", n), range(CHAINS)))


def kill_often(command: Start, undisturbed: SimpleNamespace, folder: Path, chain: int) -> None:
    """Kills runs on one data folder until they reach the end, and then on a new one."""
    chance = random.Random(SEED + chain)
    kills = homes = 0
    while kills < KILLS // CHAINS:
        home = folder / str(homes)
        while kills < KILLS // CHAINS and killed(
            command(home), chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)
        ):
            kills += 1
        finish(command(home))
        assert manifests(home) == undisturbed.manifests
        assert not list(home.glob("store/*/.*.building"))
        homes += 1


def killed(process: subprocess.Popen[str], seconds: float) -> bool:
    """Kills a run after so many seconds; whether it was still running."""
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        return True
    assert process.returncode == 0, errors[-3000:]
    return False


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_flow_that_is_stopped_leaves_no_process_behind(command: Start, tmp_path: Path, how: signal.Signals):
    home = tmp_path / "home"
    process = command(home, "execution.workers=2")
    wait_for_workers(home)
    os.kill(process.pid, how)
    deadline = time.monotonic() + STOP_SECONDS
    _, errors = process.communicate(timeout=STOP_SECONDS)
    while (left := processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left
    if how == signal.SIGINT:
        assert process.returncode == INTERRUPTED
        assert "the same command goes on where this one stopped" in errors


def wait_for_workers(home: Path) -> None:
    """Waits until the flow has started a stage's processes."""
    deadline = time.monotonic() + 100
    while not any("run_executor" in line for line in processes_of(home)):
        assert time.monotonic() < deadline, "the flow started no workers"
        time.sleep(0.2)
