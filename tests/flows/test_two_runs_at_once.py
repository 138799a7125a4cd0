"""Two runs on one store at the same time."""

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

STAGES = (
    "sample_crawl",
    "url_filtering",
    "text_extraction",
    "language_identification",
    "quality_filtering",
    "deduplication",
    "pii_scrubbing",
    "document_split",
    "bpe_training",
    "packing",
    "corpus_publication",
    "training",
    "text_generation",
    "model_publication",
)


@pytest.mark.slow
def test_two_runs_at_once_compute_every_stage_once(
    command: Callable[..., subprocess.Popen[str]], tmp_path: Path
):
    home = tmp_path / "home"
    runs = [command(home) for _ in range(2)]
    outputs = [run.communicate(timeout=400) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    folders = [path for path in home.glob("store/*/[0-9a-f]*") if path.is_dir()]
    assert Counter(path.parent.name for path in folders) == dict.fromkeys(STAGES, 1)
    computed = [line for out, _ in outputs for line in funnel_lines(out) if not line.endswith("cached")]
    assert len(computed) == len(folders)
    assert all(json.loads((folder / "manifest.json").read_text())["files"] for folder in folders)


def funnel_lines(output: str) -> list[str]:
    lines = output.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("stage  "))
    return [line for line in lines[start + 1 :][: len(STAGES)] if line.strip()]
