"""No process outlives the one that started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline().strip(), flush=True)
time.sleep(60)
"""
OBEDIENT = """
import os, time
from pipeline_config.processes import die_with_parent
die_with_parent(os.getppid())
print("ready", flush=True)
time.sleep(60)
"""
SANDBOX = """
import os, time
from tasks.steps.pages.sandbox import PageSandbox
sandbox = PageSandbox(lambda page: os.getpid(), cpu_seconds=9, memory_bytes=10**9)
print(sandbox(None), flush=True)
time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def dies_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_alive(pid)


def start(*command: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Starts Python and returns the process with the words of its first line."""
    process = subprocess.Popen([sys.executable, "-c", *command], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    process.stdout.close()


pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel's help is Linux only"
)


def test_a_child_dies_with_a_parent_that_is_killed():
    parent, [pid, ready] = start(PARENT, OBEDIENT)
    assert ready == "ready"
    assert is_alive(int(pid))
    kill(parent)
    assert dies_within(int(pid), 5)


def test_a_child_that_does_not_ask_lives_on():
    """The check of the check above: without the call the child survives its parent."""
    parent, [pid, ready] = start(PARENT, "print('ready', flush=True); import time; time.sleep(30)")
    kill(parent)
    assert ready == "ready"
    survived = not dies_within(int(pid), 0.5)
    if survived:
        os.kill(int(pid), signal.SIGKILL)
    assert survived


def test_a_child_whose_parent_died_before_it_could_ask_does_nothing(tmp_path: Path):
    """Starting Python takes a while: a parent that is killed in that time must not leave a child behind."""
    trace = tmp_path / "trace.py"
    trace.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    gone = subprocess.Popen(["true"])
    gone.wait()
    command = [sys.executable, "-m", "pipeline_config.processes", str(gone.pid), "trace"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "ran").exists()
    command[3] = str(os.getpid())
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    assert (tmp_path / "ran").exists()


def test_the_child_of_a_page_sandbox_dies_with_a_worker_that_is_killed():
    worker, [pid] = start(SANDBOX)
    assert is_alive(int(pid))
    kill(worker)
    assert dies_within(int(pid), 5)
