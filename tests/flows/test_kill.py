"""kill -9 of the flow process at random moments: a rerun ends as if nothing had happened."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.store import MANIFEST, Store

Start = Callable[..., subprocess.Popen[str]]
KILLS, KILLS_PER_CHAIN, SEED = 20, 5, 20261129


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]


def digests(home: Path) -> dict[str, str]:
    """Manifest bytes of every committed output: recipe, files and their SHA-256."""
    return {
        str(path.relative_to(home)): path.read_text() for path in (home / "store").glob(f"*/*/{MANIFEST}")
    }


def descendants_of(group: int) -> list[str]:
    found = subprocess.run(["ps", "-eo", "pgid,sid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if line.split()[:2][1] == str(group)]


@pytest.mark.slow
def test_twenty_kills_change_nothing(command: Start, tmp_path: Path):
    undisturbed = tmp_path / "undisturbed"
    started = time.monotonic()
    finish(command(undisturbed))
    seconds = time.monotonic() - started
    expected, chance = digests(undisturbed), random.Random(SEED)
    for chain in range(KILLS // KILLS_PER_CHAIN):
        home = tmp_path / f"killed-{chain}"
        for _ in range(KILLS_PER_CHAIN):
            process = command(home)
            time.sleep(chance.uniform(0.1, 0.7) * seconds)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)
        finish(command(home))
        assert digests(home) == expected
        assert not list(Store(home / "store").root.glob("*/.*.building"))


@pytest.mark.slow
def test_a_killed_flow_leaves_no_process_behind(command: Start, tmp_path: Path):
    process = command(tmp_path / "home", "execution.workers=2")
    time.sleep(12)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    deadline = time.monotonic() + 10
    while (left := descendants_of(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left
