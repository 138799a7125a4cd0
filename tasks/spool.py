"""The spool: what is to be recorded, kept on disk until it is sent, in order and once.

    <home>/mlflow/spool/<run>/00000001.json     an operation: its name and its arguments
    <home>/mlflow/spool/<run>/00000001.files/   files that go with it: hard links, or copies
    <home>/mlflow/spool/<run>/sent.json         what the receiver answered, such as the ids it gave
    <home>/mlflow/spool/<run>/refused/          operations that the receiver will never accept, with its words

Every record is written here first and sent by somebody else, so that a receiver that is away, slow or failing
delays nothing and loses nothing; what a killed process left is sent later. An operation may be sent twice
(the answer to the first time may have been lost), so the receiver's side of each must not double anything.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.store import wait_for_flock

Operation = dict[str, Any]
Send = Callable[["Spool", Operation, Path | None], None]

ANSWERS, REFUSED, FILES, LOCK = "sent.json", "refused", ".files", ".lock"


class Refused(Exception):
    """The receiver will never accept this operation, however often it is sent."""


class Spool:
    """The operations of one run."""

    def __init__(self, folder: Path):
        self.folder = folder
        taken = [*self._operations(), *(folder / REFUSED).glob("*.json")]
        self.sent = 0
        self.next = 1 + max((int(path.stem) for path in taken), default=0)

    def add(self, name: str, files: Mapping[str, Path | str] | None = None, /, **arguments: Any) -> None:
        """Keeps an operation. `files` maps a name to a file or folder, or to a text."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = f"{self.next:08d}"
        self.next += 1
        if files:
            _keep(files, self.folder / f"{number}{FILES}")
        _write(self.folder / f"{number}.json", {"name": name, "arguments": arguments})

    def answers(self) -> dict[str, Any]:
        """What the receiver answered so far."""
        try:
            return json.loads((self.folder / ANSWERS).read_text("utf-8"))
        except (OSError, ValueError):
            return {}

    def note(self, name: str, answer: Any) -> None:
        """Remembers an answer of the receiver."""
        _write(self.folder / ANSWERS, self.answers() | {name: answer})

    def waiting(self) -> int:
        """How many operations have not been sent."""
        return len(self._operations())

    def refused(self) -> list[Operation]:
        """Operations that were refused, with the receiver's words as `error`."""
        paths = sorted((self.folder / REFUSED).glob("*.json"))
        return [json.loads(path.read_text("utf-8")) for path in paths]

    def send(self, send: Send) -> int:
        """Sends what waits, in order; returns how many were sent.

        An operation that is refused is set aside. Any other error of `send` ends this and is passed on: that
        operation is still the first one waiting.
        """
        before = self.sent
        for path in self._operations():
            operation = json.loads(path.read_text("utf-8"))
            files = path.with_suffix(FILES)
            try:
                send(self, operation, files if files.is_dir() else None)
            except Refused as error:
                (self.folder / REFUSED).mkdir(exist_ok=True)
                _write(self.folder / REFUSED / path.name, operation | {"error": str(error)})
            path.unlink()
            shutil.rmtree(files, ignore_errors=True)
            self.sent += 1
        return self.sent - before

    def remove_if_done(self) -> None:
        """Removes the folder, unless something waits or was refused."""
        if not self.waiting() and not (self.folder / REFUSED).exists():
            shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, seconds: float | None = 0) -> Iterator[bool]:
        """Holds the right to send; yields whether it was had within `seconds` (None waits for ever).

        It is lost with the process.
        """
        while True:
            file = self._open_lock()
            try:
                mine = wait_for_flock(file, seconds)
                if mine and not self._is_lock(file):
                    continue  # the one who held it removed the folder: it keeps nobody out any more
                yield mine
                return
            finally:
                os.close(file)

    def _open_lock(self) -> int:
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # removed in this moment, by one who was done
                return os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _is_lock(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self.folder / LOCK))
        except FileNotFoundError:
            return False

    def _operations(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.json"))


def spools(root: Path) -> list[Spool]:
    """All spools below a folder, oldest first."""
    return [Spool(path) for path in sorted(root.glob("*")) if path.is_dir()]


def _keep(files: Mapping[str, Path | str], folder: Path) -> None:
    building = folder.with_suffix(".building")
    shutil.rmtree(building, ignore_errors=True)
    for name, content in files.items():
        target = building / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            target.write_text(content, "utf-8", errors="replace")
        elif content.is_dir():
            shutil.copytree(content, target, copy_function=_link)
        else:
            _link(content, target)
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed before it kept the operation
    building.rename(folder)


def _link(source: Path | str, target: Path | str) -> None:
    source = os.path.realpath(source)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _write(path: Path, value: Any) -> None:
    """Writes JSON, in ASCII, whole or not at all: texts of documents may hold what UTF-8 cannot."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=1), "ascii")
    os.replace(temporary, path)
