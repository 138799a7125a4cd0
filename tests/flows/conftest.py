"""A preset that takes seconds, and ways to run it in this process or in one of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipeline_config.presets import load_settings
from pipeline_config.settings import Settings

TINY = {
    "sources": [{"name": "documentation", "kind": "installed_documentation", "dump": "TINY"}],
    "sample_crawl": {"max_text_bytes": 250_000, "warc_files": 2},
    "url_filtering": {"use_integrated_lists": False},
    "quality_filtering": {
        "gopher_repetition": None,
        "gopher_quality": {"max_non_alpha_words_ratio": 0.5},
        "c4": {"filter_curly_bracket": False},
        "fineweb": None,
    },
    "document_split": {"validation_share": 0.2},
    "bpe_training": {"vocabulary_size": 400},
    "training": {
        "model": {"layers": 1, "heads": 2, "width": 32, "max_context": 32},
        "steps": 12,
        "rows_per_step": 4,
        "threads": 1,
        "warmup_steps": 2,
        "validation_every_steps": 5,
        "checkpoint_every_steps": 4,
        "learning_rate": 0.01,
    },
    "text_generation": {"max_tokens": 8},
    "execution": {"workers": 1},
}


@pytest.fixture(scope="session")
def tiny_preset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a preset file whose main path takes half a minute."""
    path = tmp_path_factory.mktemp("presets") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY, sort_keys=False), "utf-8")
    return str(path)


@pytest.fixture
def tiny(tiny_preset: str) -> Callable[..., Settings]:
    """Settings of the tiny preset, with overrides."""
    return lambda *overrides: load_settings(tiny_preset, overrides)


@pytest.fixture
def command(tiny_preset: str) -> Callable[..., subprocess.Popen[str]]:
    """Starts the main path as a user would, on a data folder."""

    def start(home: Path, *overrides: str, preset: str = tiny_preset) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.train_language_model", preset, *overrides],
            env={**os.environ, "TOKENMILL_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start
