"""The two commands say what is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


def run(tmp_path: Path, command: str = "run.sh", **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that is expected to end before it installs anything."""
    return subprocess.run(
        ["bash", str(PROJECT / "infra" / command)],
        env={**os.environ, "TOKENMILL_VENV": str(tmp_path / "venv"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def stub(folder: Path, name: str, script: str) -> str:
    """A program of this name, and a PATH that finds it first."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize("command", ["run.sh", "test.sh"])
def test_a_missing_python_is_named(tmp_path: Path, command: str):
    done = run(tmp_path, command, PYTHON="no-such-python")
    assert done.returncode == 1
    assert "error: no no-such-python: install Python 3.11" in done.stderr


def test_an_old_python_is_refused_with_its_version(tmp_path: Path):
    old = 'if [ "$1" = -V ]; then echo Python 3.8.1; else exit 1; fi'
    done = run(tmp_path, PATH=stub(tmp_path, "python3", old), PYTHON="python3")
    assert done.returncode == 1
    assert "python3 is Python 3.8.1: Tokenmill needs Python 3.11 or newer" in done.stderr


def test_a_full_disk_is_refused_before_anything_is_installed(tmp_path: Path):
    df = "echo Filesystem; echo /dev/x 1000 900 100 90% /"
    done = run(tmp_path, PATH=stub(tmp_path, "df", df), PYTHON=sys.executable)
    assert done.returncode == 1
    assert "100 MB free" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_failed_installation_without_a_compiler_says_so(tmp_path: Path):
    script = f". {PROJECT}/infra/setup.sh; command() {{ return 1; }}; explain_failure"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "there is no C compiler" in done.stderr
