"""The thread that sends a run's records to MLflow while the run goes on, and what earlier runs left."""

import contextlib
import importlib
import threading
import time
from pathlib import Path
from typing import Any

from prefect.logging import get_logger

from pipeline_config.environment import home
from tasks.spool import Spool
from tasks.store import Store

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, LAST_WAIT_SECONDS = 0.2, 5.0, 30.0


def spool_root() -> Path:
    """Where the records wait that are not sent yet."""
    return home() / "mlflow" / "spool"


class Sender:
    """A thread that sends a spool, and what earlier runs left, while the run goes on."""

    def __init__(self, spool: Spool, store: Store):
        self.spool = spool
        self.store = store
        self.answers: dict[str, Any] = {}
        self.error: Exception | None = None
        self._wake, self._closing = threading.Event(), threading.Event()
        self._held = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)

    def start(self) -> None:
        """Starts sending. From here on nobody else sends this spool, or removes it."""
        self._held.enter_context(self.spool.lock(None))
        self._thread.start()

    def wake(self) -> None:
        """Says that there is something to send."""
        self._wake.set()

    def close(self, seconds: float | None = None) -> None:
        """Sends what is left, for some seconds at most (`LAST_WAIT_SECONDS`)."""
        self._closing.set()
        self._wake.set()
        self._thread.join(LAST_WAIT_SECONDS if seconds is None else seconds)
        left, refused = self.spool.waiting(), self.spool.refused()
        log = get_logger("records")
        if left:
            why = f" ({self.error})" if self.error else ""
            log.warning(
                "%d records are not in MLflow yet%s. They are kept in %s; the next run sends them, "
                "and so does `python -m flows.audit flush`", left, why, self.spool.folder,
            )  # fmt: skip
        for operation in refused:
            log.warning("MLflow refused a record (%s): %s", operation["name"], operation["error"])

    def _run(self) -> None:
        with self._held:
            self._send_until_closed()
            self.answers = self.spool.answers()
            self.spool.remove_if_done()

    def _send_until_closed(self) -> None:
        tracker, pause, deadline = None, PAUSE_SECONDS, float("inf")
        while True:
            closing = self._closing.is_set()
            if closing:
                deadline = min(deadline, time.monotonic() + LAST_WAIT_SECONDS)
            self._wake.clear()
            sent = self.spool.sent
            try:
                if tracker is None:
                    tracker = self._connect()
                    self._send_leftovers()  # first: what this run says may concern earlier ones
                self.spool.send(tracker.send)
            except Exception as error:  # MLflow is away; whatever it says, the records are on disk
                self.error = error
                going = self.spool.sent > sent  # MLflow fails at random, but is there
                pause = PAUSE_SECONDS if going else min(2 * pause, LONGEST_PAUSE_SECONDS)
                if not closing:
                    self._closing.wait(pause)
                elif time.monotonic() + pause > deadline:
                    return
                else:
                    time.sleep(pause)
                continue
            self.error, pause = None, PAUSE_SECONDS
            if closing and not self.spool.waiting():
                return
            self._wake.wait(None if not closing else 0)

    def _connect(self) -> Any:
        from tasks.provenance import Tracker  # MLflow takes seconds to import

        tracker = Tracker(self.store)
        self.spool.note("experiment", tracker.experiment)
        return tracker

    def _send_leftovers(self) -> None:
        from tasks.provenance import send_all

        try:
            for _ in send_all(self.spool.folder.parent, self.store):
                pass
        except Exception as error:
            get_logger("records").warning("records of earlier runs could not be sent: %s", error)


def warm_up() -> None:
    """Imports MLflow in the background, while Prefect's server starts."""
    threading.Thread(target=lambda: importlib.import_module("tasks.provenance"), daemon=True).start()
