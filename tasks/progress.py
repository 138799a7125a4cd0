"""Progress of a stage on its page in Prefect, at a bounded rate."""

import contextlib
import time
from pathlib import Path
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

FIRST_AFTER_SECONDS = 3.0
EVERY_SECONDS = 2.0


class Progress:
    """Shows how much of a stage is done; short stages show nothing."""

    def __init__(self, title: str):
        self.title = title
        self.folder: Path | None = None
        self.total = 1
        self.artifact: UUID | None = None
        self.next_update = time.monotonic() + FIRST_AFTER_SECONDS

    def expect(self, folder: Path, total: int) -> None:
        """From now on, done is the number of shards with books in `folder`."""
        self.folder, self.total = folder, total

    def update(self) -> None:
        """Counts finished shards and shows them."""
        if self.folder is not None and time.monotonic() >= self.next_update:
            done = len(list(self.folder.glob("[0-9]*.json")))
            self.show(100.0 * done / self.total)

    def show(self, percent: float) -> None:
        """Shows a percentage, unless one was shown just now."""
        if time.monotonic() < self.next_update:
            return
        self.next_update = time.monotonic() + EVERY_SECONDS
        with contextlib.suppress(Exception):  # a server that is away must not end the stage
            if self.artifact is None:
                self.artifact = create_progress_artifact(progress=percent, description=self.title)
            else:
                update_progress_artifact(self.artifact, progress=percent)
