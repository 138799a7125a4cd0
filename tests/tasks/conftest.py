"""What tests of several modules need: processes that can be told from all others, and a bad web server."""

import contextlib
import http.server
import os
import signal
import threading
import time
from collections.abc import Iterator
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


class BadHandler(http.server.BaseHTTPRequestHandler):
    """Answers `/503/...` and `/403/...` with that status; all else with a tenth of what it promised."""

    def do_HEAD(self) -> None:
        status = self.path.split("/")[1]
        self.send_response(int(status) if status.isdigit() else 200)
        self.send_header("Content-Length", "0" if status.isdigit() else "1000")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        if not self.path.split("/")[1].isdigit():
            self.wfile.write(b"x" * 100)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def bad_server() -> Iterator[str]:
    """The address of a web server that serves nobody well."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), BadHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
