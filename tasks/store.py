"""The store: content-addressed folders, one for each stage and key.

    <store>/<stage>/<key>/           a committed output; manifest.json is written last
    <store>/<stage>/.<key>.building  one that is being made, or that was interrupted
    <store>/.locks/                  one lock file for each key

A folder becomes visible by one rename, when it is whole. The manifest lists every file but those that begin
with an underscore, which say how and when the output came about: two runs of one recipe have the same
manifest, byte for byte. Locks are `flock`s: the kernel drops them when their process dies, however it dies.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from pipeline_config.environment import home
from pipeline_config.errors import StageError, StoreError
from tasks.mirror import MANIFEST, Mirror

REPORT = "report.json"
COMPUTATION = "_computation.json"  # seconds, and the record of the run that computed it
NOT_CONTENT = ("removed/", "clusters/", REPORT)  # on record, but nothing is made from it
STALE_SECONDS = 7 * 24 * 3600


class StageOutput(BaseModel):
    """A committed output, by name: where it lies follows from the store that it is asked of."""

    model_config = ConfigDict(frozen=True)

    stage: str
    key: str
    digest: str
    label: str = ""


def canonical_json(value: Any) -> bytes:
    """JSON with one spelling per value: sorted names, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_of(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_text(value: Any) -> str:
    """JSON for files: readable, and the same text for the same value."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON, whole or not at all."""
    write_bytes(path, json_text(value).encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)


class Store:
    """Reads and commits stage outputs below one folder."""

    def __init__(self, root: Path, mirror: Mirror | None = None):
        self.root = root
        self.mirror = mirror

    @property
    def address(self) -> str:
        """What names this store to other machines."""
        return self.mirror.url if self.mirror else str(self.root)

    def folder(self, stage: str, key: str) -> Path:
        """Where a committed output lies."""
        return self.root / stage / key

    def path(self, output: StageOutput) -> Path:
        """Where a committed output lies; fetched from the mirror if it is not here."""
        folder = self.folder(output.stage, output.key)
        if self.mirror and not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            self.mirror.fetch(output.stage, output.key, folder)
        return folder

    def folders(self, stage: str = "*") -> list[Path]:
        """The folders of all committed outputs, those of the mirror, too."""
        if self.mirror:
            for name, key in self.mirror.keys(stage):
                self.path(StageOutput(stage=name, key=key, digest=""))
        return sorted(path.parent for path in self.root.glob(f"{stage}/[0-9a-f]*/{MANIFEST}"))

    def share(self, output: StageOutput) -> None:
        """Makes sure that the mirror holds an output."""
        if self.mirror and not self.mirror.holds(output.stage, output.key):
            self.mirror.publish(output.stage, output.key, self.folder(output.stage, output.key))

    def manifest(self, output: StageOutput) -> dict[str, Any]:
        """What the output was made of and which files it has."""
        return json.loads((self.path(output) / MANIFEST).read_text("utf-8"))

    def report(self, output: StageOutput) -> dict[str, Any]:
        """The counts of the stage that made the output."""
        return json.loads((self.path(output) / REPORT).read_text("utf-8"))

    def computation(self, output: StageOutput) -> dict[str, Any]:
        """How the output was made: `seconds`, `record` of the run that did it, SHA-256 of the `manifest`."""
        return self._read_computation(self.path(output))

    def _read_computation(self, folder: Path) -> dict[str, Any]:
        try:
            return json.loads((folder / COMPUTATION).read_text("utf-8"))
        except (OSError, ValueError):
            return {}

    def find(self, stage: str, key: str, label: str = "") -> StageOutput | None:
        """The committed output of a key, if it is there with all its files in their full size."""
        folder = self.path(StageOutput(stage=stage, key=key, digest=""))
        try:
            manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
            whole = all((folder / file["path"]).stat().st_size == file["bytes"] for file in manifest["files"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return StageOutput(stage=stage, key=key, digest=manifest["digest"], label=label) if whole else None

    def building_folder(self, stage: str, key: str) -> Path:
        """Where an output is made. Finished shards of an interrupted attempt are still in it."""
        folder = self.root / stage / f".{key}.building"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def discard(self, stage: str, key: str) -> None:
        """Removes whatever is there of a key, committed or not."""
        for folder in (self.folder(stage, key), self.root / stage / f".{key}.building"):
            if folder.exists():
                doomed = folder.with_name(f".{key}.{os.getpid()}.doomed")
                folder.rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)

    def discard_draft(self, stage: str, key: str) -> None:
        """Removes what is there of an output that is being made."""
        shutil.rmtree(self.root / stage / f".{key}.building", ignore_errors=True)

    def confirm(self, found: StageOutput, label: str) -> StageOutput:
        """Compares an output that was made once more with the committed one, and keeps that.

        Raises:
            StageError: they differ, so the stage is not a function of its key.
        """
        folder = self.building_folder(found.stage, found.key)
        made = {str(file["path"]): file["sha256"] for file in _described_files(folder)}
        known = {str(file["path"]): file["sha256"] for file in self.manifest(found)["files"]}
        differing = sorted(name for name in made.keys() | known.keys() if made.get(name) != known.get(name))
        self.discard_draft(found.stage, found.key)
        if differing:
            raise StageError(
                f"stage {found.stage} ({label}), computed again, differs from the store's output "
                f"{self.path(found)} in {', '.join(differing[:5])}. If `verify` finds that output damaged, "
                "remove its folder and run again; otherwise the stage does not give the same bytes each time"
            )
        return found.model_copy(update={"label": label})

    def commit(self, stage: str, key: str, recipe: dict[str, Any], label: str) -> StageOutput:
        """Describes the finished files in a manifest and renames the folder into place."""
        building = self.building_folder(stage, key)
        files = _described_files(building)
        if not any(_is_content(file["path"]) for file in files):
            raise StageError(f"stage {stage} ({label}) made no files")
        digest = content_digest(files)
        manifest = {"stage": stage, "key": key, "digest": digest, "recipe": recipe, "files": files}
        write_json(building / MANIFEST, manifest)
        made = self._read_computation(building) | {"manifest": file_digest(building / MANIFEST)}
        write_json(building / COMPUTATION, made)
        _flush_to_disk(building)
        building.rename(self.folder(stage, key))
        _flush_to_disk(self.root / stage)
        return StageOutput(stage=stage, key=key, digest=digest, label=label)

    def sweep(self, stage: str, keep: str = "") -> None:
        """Removes what killed runs left in a stage's folder and nobody came back for in a week.

        Args:
            keep: a key that is about to be resumed.
        """
        folder = self.root / stage
        for leftover in folder.glob(".*.building") if folder.is_dir() else ():
            key = leftover.name[1:].removesuffix(".building")
            if key != keep and time.time() - leftover.stat().st_mtime > STALE_SECONDS:
                with self.lock(record_of(stage, key), seconds=0) as held:
                    if held:
                        shutil.rmtree(leftover)
        for leftover in folder.glob(".*.doomed") if folder.is_dir() else ():
            shutil.rmtree(leftover, ignore_errors=True)
        for leftover in folder.glob(".*.fetching") if folder.is_dir() else ():
            if time.time() - leftover.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)

    def remove_loose_files(self) -> None:
        """Removes what Prefect persists of a failed task, in the store's root: nobody reads it there."""
        for path in self.root.iterdir():
            if path.is_file():
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, name: str, seconds: float | None = None) -> Iterator[bool]:
        """Holds a lock; yields whether it was had within `seconds` (None waits for ever)."""
        file = self.open_lock(name)
        try:
            yield wait_for_flock(file, seconds)
        finally:
            os.close(file)

    def open_lock(self, name: str) -> int:
        """Opens a lock file and returns its descriptor; closing it drops the lock."""
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / name.replace("/", "-"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def open_store() -> Store:
    """The store of the data folder, with the mirror that `TOKENMILL_STORE` names."""
    url = os.environ.get("TOKENMILL_STORE")
    return Store(home() / "store", Mirror(url) if url else None)


def record_of(stage: str, key: str) -> str:
    """Where Prefect's record of a stage lies in the store; also the name of the lock on its key."""
    return f"{stage}/{key}/_prefect"


def wait_for_flock(file: int, seconds: float | None) -> bool:
    """Takes an exclusive lock on an open file; whether it was had within `seconds`."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        else:
            return True


@contextlib.contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Turns a full or read-only disk into an error that names the folder."""
    try:
        yield
    except OSError as error:
        message = disk_problem(error, root)
        if message is None:
            raise
        raise StoreError(message) from None


def disk_problem(error: OSError, root: Path) -> str | None:
    """What to tell the user of an error that comes from the disk below `root`, or None."""
    causes = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EROFS: "the disk is read-only",
        errno.EACCES: "no permission to write",
    }
    outside = error.filename and not Path(os.fsdecode(error.filename)).is_relative_to(root)
    if error.errno not in causes or outside:
        return None
    return f"{causes[error.errno]}: store {root}. Free some space, or set TOKENMILL_HOME to another disk"


def _is_content(path: str) -> bool:
    return not path.startswith(NOT_CONTENT)


def content_digest(files: list[dict[str, Any]]) -> str:
    """The digest of an output, from its manifest's list of files."""
    return digest_of([[file["path"], file["sha256"]] for file in files if _is_content(file["path"])])


def is_sidecar(path: Path) -> bool:
    """Whether a file says how an output came about, and is no part of it."""
    return path.name.startswith("_")


def files_below(folder: Path) -> list[Path]:
    """All files of a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _described_files(folder: Path) -> list[dict[str, Any]]:
    paths = [path for path in files_below(folder) if not is_sidecar(path) and path.name != MANIFEST]
    return [describe_file(path, folder) for path in paths]


def describe_file(path: Path, folder: Path) -> dict[str, Any]:
    """A file's line in a manifest: path, bytes, SHA-256, and rows of a Parquet file."""
    description = {
        "path": path.relative_to(folder).as_posix(),
        "bytes": path.stat().st_size,
        "sha256": file_digest(path),
    }
    if path.suffix == ".parquet":
        description["rows"] = pq.read_metadata(path).num_rows
    return description


def _flush_to_disk(folder: Path) -> None:
    for path in [*files_below(folder), folder] if folder.joinpath(MANIFEST).exists() else [folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
