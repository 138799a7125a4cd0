"""kill -9 of the flow process at random moments: a rerun ends as if nothing had happened."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.store import MANIFEST

Start = Callable[..., subprocess.Popen[str]]
KILLS, SEED = 20, 20261129
SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 25.0  # from the imports to the training


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
    finish(command(tmp_path / "undisturbed"))
    expected, chance = digests(tmp_path / "undisturbed"), random.Random(SEED)
    kills = chains = 0
    while kills < KILLS:
        home = tmp_path / f"killed-{chains}"
        while kills < KILLS and killed(command(home), chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)):
            kills += 1
        finish(command(home))
        assert digests(home) == expected
        assert not list(home.glob("store/*/.*.building"))
        chains += 1


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
def test_a_killed_flow_leaves_no_process_behind(command: Start, tmp_path: Path):
    process = command(tmp_path / "home", "execution.workers=2")
    time.sleep(12)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    deadline = time.monotonic() + 10
    while (left := descendants_of(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left
