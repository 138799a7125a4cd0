"""Every node of a cluster must run the same code: an output is named by the versions that the flow has."""

import functools
import hashlib
import importlib.metadata
import platform
import re
from pathlib import Path
from typing import Any

import pipeline_config
import tasks
from pipeline_config.errors import StageError

DISTRIBUTION = "tokenmill"


@functools.cache
def installation() -> dict[str, str]:
    """What decides the output here: versions of Python and of the libraries that we name, and our code."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in _required():
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "nothing"
    return versions | {"the code of Tokenmill": _code_digest()[:12]}


def _required() -> list[str]:
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return sorted(re.split(r"[^\w.-]", line)[0] for line in lines if "extra ==" not in line)


def _code_digest() -> str:
    digest = hashlib.sha256()
    for package in (pipeline_config, tasks):
        folder = Path(package.__path__[0])
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class SameInstallation:
    """First step of a pipeline that runs elsewhere: compares that place with where it was made."""

    def __init__(self) -> None:
        self.expected = installation()

    def __call__(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Any:
        """Passes `data` on.

        Raises:
            StageError: something is installed here in another version.
        """
        here = installation()
        names = sorted(self.expected.keys() | here.keys())
        differing = [
            f"{name}: {here.get(name, 'nothing')} instead of {self.expected.get(name, 'nothing')}"
            for name in names
            if here.get(name) != self.expected.get(name)
        ]
        if differing:
            raise StageError(
                f"node {platform.node()} has another installation than the flow ({'; '.join(differing)}): "
                "install the same everywhere, or the outputs would not be what their keys say"
            )
        return data

    def __repr__(self) -> str:
        return "CHECK: same installation"
