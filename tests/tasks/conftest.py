"""What tests of several modules need: processes that can be told from all others."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

MARK = "TOKENMILL_TEST_MARK"


class MarkedProcesses:
    """The processes that started with a mark of the test's own in their environment."""

    def __init__(self, mark: str):
        self.environment = {MARK: mark}
        self.entry = f"{MARK}={mark}".encode()

    def living(self) -> dict[int, str]:
        """Their command lines by number."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.entry in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def gone(self) -> bool:
        """Whether none is left; kills those that are, so that nothing outlives the tests."""
        deadline = time.monotonic() + 5
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for number, command in left.items():
            print("still running:", command)
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return not left


@pytest.fixture
def marked(tmp_path: Path) -> MarkedProcesses:
    """Marks for the processes of one test."""
    return MarkedProcesses(f"{os.getpid()}-{tmp_path.name}")
