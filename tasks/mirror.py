"""The store's copy on an object store, shared by machines: `TOKENMILL_STORE`, any URL that fsspec knows.

    <url>/store/<stage>/<key>/...     an output; its manifest is written last, so one with a manifest is whole
    <url>/runs/<id>.json              the record of a run

Work is done on local disks. A finished output is copied here; one that is needed and not there locally is
fetched, and checked against its manifest, before it appears.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from pipeline_config.errors import StoreError, UnreachableError, may_pass

MANIFEST = "manifest.json"
NAME = re.compile(r"[a-z0-9_]+")  # of stages and keys: others are not ours, such as `..`


class Mirror:
    """Copies outputs and run records to and from one address."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self._found: tuple[Any, str] | None = None

    def holds(self, stage: str, key: str) -> bool:
        """Whether an output is there, whole."""
        with self._errors():
            return self._fs.exists(self._place("store", stage, key, MANIFEST))

    def publish(self, stage: str, key: str, folder: Path) -> None:
        """Copies an output, its manifest last."""
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        names = [file["path"] for file in manifest["files"]]
        names += sorted(path.name for path in folder.glob("_*.json"))
        with self._errors():
            for name in [*names, MANIFEST]:
                self._put(folder / name, self._place("store", stage, key, name))

    def fetch(self, stage: str, key: str, folder: Path) -> bool:
        """Copies an output into a folder, which appears when it is whole; whether there was one.

        Raises:
            StoreError: a file is not what its manifest says.
        """
        draft = folder.with_name(f".{key}.{uuid4().hex}.fetching")
        try:
            with self._errors():
                try:
                    manifest = self._fs.cat_file(self._place("store", stage, key, MANIFEST))
                except FileNotFoundError:
                    return False
                draft.mkdir(parents=True)
                for file in json.loads(manifest)["files"]:
                    self._fetch_file(stage, key, file, draft)
                for place in self._fs.glob(self._place("store", stage, key, "_*.json")):
                    self._fs.get_file(place, str(draft / place.rpartition("/")[2]))
                (draft / MANIFEST).write_bytes(manifest)
            try:
                draft.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
            return True  # perhaps another process fetched it meanwhile
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _fetch_file(self, stage: str, key: str, file: dict[str, Any], draft: Path) -> None:
        place, target = self._place("store", stage, key, file["path"]), draft / file["path"]
        if not target.resolve().is_relative_to(draft.resolve()):
            raise StoreError(f"the manifest of {stage}/{key} in {self.url} names {file['path']!r}, outside")
        target.parent.mkdir(parents=True, exist_ok=True)
        self._fs.get_file(place, str(target))
        with target.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != file["sha256"]:
            raise StoreError(
                f"{self.url}/store/{stage}/{key}/{file['path']} is damaged: its SHA-256 is {digest}, and "
                f"{file['sha256']} in the manifest. Remove that folder there, and run again"
            )

    def keys(self, stage: str = "*") -> list[tuple[str, str]]:
        """(stage, key) of all outputs."""
        with self._errors():
            found = self._fs.glob(self._place("store", stage, "*", MANIFEST))
        pairs = (place.split("/")[-3:-1] for place in found)
        return sorted((name, key) for name, key in pairs if NAME.fullmatch(name) and NAME.fullmatch(key))

    def write_record(self, path: Path) -> None:
        """Copies the record of a run."""
        with self._errors():
            self._put(path, self._place("runs", path.name))

    def read_records(self, known: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        """(name, content) of the records of runs that are not known in this size."""
        with self._errors():
            try:
                entries = self._fs.ls(self._place("runs"), detail=True, refresh=True)
            except FileNotFoundError:
                return
            for entry in entries:
                name = entry["name"].rpartition("/")[2]
                if name.endswith(".json") and known.get(name) != entry["size"]:
                    yield name, self._fs.cat_file(entry["name"])

    def write_sidecar(self, stage: str, key: str, path: Path) -> None:
        """Copies a file that says something about an output and is no part of it."""
        with self._errors():
            self._put(path, self._place("store", stage, key, path.name))

    def read_sidecar(self, stage: str, key: str, name: str) -> bytes | None:
        """Such a file's content, if it is there."""
        with self._errors():
            try:
                return self._fs.cat_file(self._place("store", stage, key, name))
            except FileNotFoundError:
                return None

    def _put(self, path: Path, place: str) -> None:
        """Copies a file, which appears when it is whole: object stores do that, in folders a rename does."""
        if not isinstance(self._fs, LocalFileSystem):
            self._fs.put_file(str(path), place)
            return
        draft = f"{place}.{uuid4().hex}.part"
        self._fs.put_file(str(path), draft)
        os.replace(draft, place)

    def _place(self, *parts: str) -> str:
        return "/".join([self._root, *parts])

    @property
    def _fs(self) -> Any:
        return self._resolved()[0]

    @property
    def _root(self) -> str:
        return self._resolved()[1]

    def _resolved(self) -> tuple[Any, str]:
        if self._found is None:
            fs, path = url_to_fs(self.url, use_listings_cache=False)
            if isinstance(fs, LocalFileSystem):
                fs.auto_mkdir = True
            self._found = fs, path.rstrip("/")
        return self._found

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns what an object store's client raises into errors that name the address."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            if may_pass(error):
                raise UnreachableError(f"object store {self.url} does not answer: {said}") from error
            raise StoreError(
                f"object store {self.url} refuses: {said}. Check TOKENMILL_STORE and the credentials"
            ) from error
