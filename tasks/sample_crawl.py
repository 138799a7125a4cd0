"""Sample crawl: WARC files of the installed packages' documentation, for a first run without a crawl."""

import importlib.metadata
import sys
import sysconfig

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
    """Names and versions of the packages whose modules are read.

    Copies that packages bring along for themselves and add to the path when they are imported, as setuptools
    and Ray do, do not count.
    """
    paths = sysconfig.get_paths()
    folders = sorted({paths["purelib"], paths["platlib"]})
    found = importlib.metadata.distributions(path=folders)
    return sorted({f"{d.name}=={d.version}" for d in found if d.name != OWN_PACKAGE})


def _build(work: Work) -> Report:
    steps = [
        ReadModules(),
        RenderModule(work.settings),
        WriteCrawl(str(work.folder), work.settings.warc_files),
    ]
    return work.run_shards(steps, tasks=1)
