"""Two runs on one store at the same time."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
def test_two_runs_at_once_compute_every_stage_once(
    command: Callable[..., subprocess.Popen[str]], tmp_path: Path
):
    home = tmp_path / "home"
    runs = [command(home) for _ in range(2)]
    outputs = [run.communicate(timeout=400) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    folders = [path for path in home.glob("store/*/[0-9a-f]*") if path.is_dir()]
    assert len(folders) == 12
    computed = [line for out, _ in outputs for line in funnel_lines(out) if not line.endswith("cached")]
    assert len(computed) == len(folders)
    assert all(json.loads((folder / "manifest.json").read_text())["files"] for folder in folders)


def funnel_lines(output: str) -> list[str]:
    lines = output.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("stage  "))
    return [line for line in lines[start + 1 :][:12] if line.strip()]
