"""Progress of a stage: on its page in Prefect at a bounded rate, and as one bar on a terminal."""

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.logging import get_logger
from prefect.runtime import flow_run, task_run
from tqdm import tqdm

FIRST_AFTER_SECONDS = 3.0
EVERY_SECONDS, BAR_SECONDS, LAST_SECONDS = 2.0, 0.5, 2.0
MINUTE, HOUR = 60, 3600


class Progress:
    """Shows how much of a stage is done, how fast, and how long it will take; short stages show nothing."""

    def __init__(self, title: str, flow_run_id: str = ""):
        self.title = title
        self.artifact = Artifact("progress", flow_run_id)
        self.unit = "documents"
        self.folder: Path | None = None
        self.total: int | None = None
        self.before: int | None = None
        self.bar: tqdm | None = None
        self.opened = self.started = time.monotonic()
        self.next_update = self.started + FIRST_AFTER_SECONDS
        self.next_bar = self.started
        self._counts: dict[str, tuple[int, int]] = {}
        self._sending: threading.Thread | None = None

    def expect(self, folder: Path, total: int | None, unit: str = "documents") -> None:
        """From now on, done is the sum of the numbers in the files of a folder; `total` may be unknown."""
        self._close_bar()
        self.folder, self.total, self.unit = folder, total, unit
        self.started, self.before, self._counts = time.monotonic(), None, {}

    def update(self) -> None:
        """Counts what is done, and shows it if it is time to."""
        now = time.monotonic()
        if self.folder is not None and (now >= self.next_update or (now >= self.next_bar and _on_terminal())):
            self.show(self._count(), self.total)

    def show(self, done: int, total: int | None, note: str = "") -> None:
        """Shows what is done, unless that was shown just now.

        Args:
            note: what else there is to say, such as a loss.
        """
        now = time.monotonic()
        if self.before is None:
            self.before = done
        if now >= self.next_bar and _on_terminal():
            self.next_bar = now + BAR_SECONDS
            self._draw(done, total, note)
        if now >= self.next_update:
            self.next_update = now + EVERY_SECONDS
            text = " · ".join(filter(None, [self.title, self.describe(done, total), note]))
            self._send(100.0 * min(1.0, done / total) if total else 0.0, text)

    def describe(self, done: int, total: int | None) -> str:
        """`1,234 of 5,678 documents · 310/s · 0:14 left`."""
        elapsed = time.monotonic() - self.started
        rate = (done - (self.before or 0)) / elapsed if elapsed > 0 else 0.0
        parts = [f"{done:,} of {total:,} {self.unit}" if total else f"{done:,} {self.unit}"]
        if rate > 0:
            parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
            if total:
                parts.append(f"{duration((total - done) / rate)} left")
        return " · ".join(parts)

    def finish(self) -> None:
        """Takes the bar off the terminal, and fills the one in Prefect."""
        self._close_bar()
        if self._sending is not None:
            self._send(100.0, f"{self.title} · done in {duration(time.monotonic() - self.opened)}")
            self._sending.join(LAST_SECONDS)

    def _close_bar(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _count(self) -> int:
        """Sum over the files; only those that changed are read again."""
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir() if self.folder else ():
                with contextlib.suppress(OSError, ValueError):
                    changed = path.stat().st_mtime_ns
                    if self._counts.get(path.name, (0, 0))[0] != changed:
                        self._counts[path.name] = (changed, int(path.read_text("ascii")))
        return sum(count for _, count in self._counts.values())

    def _draw(self, done: int, total: int | None, note: str) -> None:
        if self.bar is None:
            self.bar = tqdm(total=total, initial=done, desc=self.title, leave=False, dynamic_ncols=True)
            self.bar.unit = f" {self.unit}"
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(done - self.bar.n)
        self.bar.refresh()

    def _send(self, percent: float, text: str) -> None:
        """Leaves a value to a thread, unless one is on its way: a slow server does not slow the stage."""
        if self._sending is not None and self._sending.is_alive():
            self._sending.join(0 if percent < 100 else LAST_SECONDS)
            if self._sending.is_alive():
                return
        self._sending = threading.Thread(target=self._send_now, args=(percent, text), daemon=True)
        self._sending.start()

    def _send_now(self, percent: float, text: str) -> None:
        with contextlib.suppress(Exception):  # a server that is away must not end the stage
            self.artifact.write(percent, text)


class Page:
    """A Markdown page of a flow run in Prefect that can be written again."""

    def __init__(self, key: str, description: str, flow_run_id: str = ""):
        self.artifact = Artifact("markdown", flow_run_id, key=key)
        self.description = description

    def show(self, markdown: str) -> None:
        """Writes the page; a server that is away does not end the run."""
        try:
            self.artifact.write(markdown, self.description)
        except Exception as error:
            get_logger("progress").warning("the page %s could not be written: %s", self.artifact.key, error)


class Artifact:
    """An artifact in Prefect that is made once and then changed.

    Args:
        flow_run_id: the flow run on whose page it is; by default the one that is running.
    """

    def __init__(self, kind: str, flow_run_id: str = "", key: str | None = None):
        self.kind, self.key = kind, key
        self.flow_run_id = flow_run_id or flow_run.id
        self.task_run_id = task_run.id
        self.id: UUID | None = None

    def write(self, data: Any, description: str) -> None:
        """Makes it, or changes it."""
        with get_client(sync_client=True) as client:
            if self.id is not None:
                client.update_artifact(self.id, ArtifactUpdate(data=data, description=description))
                return
            places = {"flow_run_id": self.flow_run_id, "task_run_id": self.task_run_id, "key": self.key}
            known = {name: value for name, value in places.items() if value}
            made = ArtifactCreate(type=self.kind, data=data, description=description, **known)
            self.id = client.create_artifact(made).id


def duration(seconds: float) -> str:
    """`0:07`, `12:34` or `3:05:00`."""
    whole = int(seconds)
    hours, minutes, rest = whole // HOUR, whole // MINUTE % MINUTE, whole % MINUTE
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _on_terminal() -> bool:
    return sys.stderr.isatty()
