"""A preset that takes seconds, and ways to run it in this process or in one of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline_config.presets import load_settings
from pipeline_config.settings import Settings

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIET))
        yield browser
        browser.close()


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
