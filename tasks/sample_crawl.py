"""Sample crawl: WARC files of the installed packages' documentation, for a first run without a crawl."""

import importlib.metadata
import sys
from pathlib import Path

from pipeline_config.settings import Source
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.sample_crawl import ReadModules, RenderModule, WriteCrawl
from tasks.store import StageOutput

STAGE = Stage("sample_crawl", "Render sample crawl", version=2, libraries=("pyarrow",))
OWN_PACKAGE = "tokenmill"


def render_sample_crawl(run: Run, source: Source) -> StageOutput:
    """A small crawl; its content follows from the Python packages that are installed."""
    packages = installed_packages()
    return run.stage(
        STAGE, _build, run.settings.sample_crawl, label=source.name, content=[sys.version, *packages]
    )


def installed_packages() -> list[str]:
    """Names and versions of the installed packages.

    Copies that packages bring along for themselves do not count: setuptools adds its own to the path when
    something imports it, sooner or later.
    """
    path = [folder for folder in sys.path if Path(folder).name != "_vendor"]
    found = {
        f"{d.name}=={d.version}" for d in importlib.metadata.distributions(path=path) if d.name != OWN_PACKAGE
    }
    return sorted(found)


def _build(work: Work) -> Report:
    steps = [
        ReadModules(),
        RenderModule(work.settings),
        WriteCrawl(str(work.folder), work.settings.warc_files),
    ]
    return work.run_shards(steps, tasks=1)
