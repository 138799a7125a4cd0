"""Sample crawl: WARC files of the installed packages' documentation, for a first run without a crawl."""

import importlib.metadata
import sys

from pipeline_config.settings import Source
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.sample_crawl import ReadModules, RenderModule, WriteCrawl
from tasks.store import StageOutput

STAGE = Stage("sample_crawl", "Render sample crawl", version=2, libraries=("pyarrow",))
OWN_PACKAGE = "tokenmill"


def render_sample_crawl(run: Run, source: Source) -> StageOutput:
    """A small crawl; its content follows from the Python packages that are installed."""
    packages = sorted(
        f"{found.name}=={found.version}"
        for found in importlib.metadata.distributions()
        if found.name != OWN_PACKAGE
    )
    return run.stage(
        STAGE, _build, run.settings.sample_crawl, label=source.name, content=[sys.version, *packages]
    )


def _build(work: Work) -> Report:
    steps = [
        ReadModules(),
        RenderModule(work.settings),
        WriteCrawl(str(work.folder), work.settings.warc_files),
    ]
    return work.run_shards(steps, tasks=1)
