"""The spool: nothing is lost, nothing changes its place, and only one process sends."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.spool import Operation, Refused, Spool, spools

HOLD = """
import sys, time
from pathlib import Path
from tasks.spool import Spool
with Spool(Path(sys.argv[1])).lock() as mine:
    print(mine, flush=True)
    time.sleep(100)
"""
HOSTILE = [
    pytest.param("a\ud800b", id="lone surrogate"),
    pytest.param("a\0b\x1b[31m\n", id="NUL and control characters"),
    pytest.param("é" * 100_000, id="100 kB"),
    pytest.param("\U0001f600\u2028\u202e", id="beyond the basic plane"),
]


class Receiver:
    """Takes operations, and fails as often as told."""

    def __init__(self, *errors: Exception | None):
        self.errors = list(errors)
        self.got: list[Operation] = []
        self.files: list[dict[str, bytes]] = []

    def __call__(self, spool: Spool, operation: Operation, files: Path | None) -> None:
        self.got.append(operation)
        found = files.rglob("*") if files else ()
        self.files.append({str(f.relative_to(files)): f.read_bytes() for f in found if files and f.is_file()})
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    @property
    def names(self) -> list[str]:
        """What came, in order."""
        return [operation["name"] for operation in self.got]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool" / "run")


def fill(spool: Spool, *names: str) -> None:
    for name in names:
        spool.add(name)


def files_sent(spool: Spool) -> dict[str, bytes]:
    """Sends the only operation that waits; returns the files that came with it."""
    receiver = Receiver()
    assert spool.send(receiver) == 1
    return receiver.files[0]


def test_operations_are_sent_in_the_order_they_came_with_their_arguments(spool: Spool) -> None:
    for number in range(120):
        spool.add(f"operation {number}", number=number, nested={"a": [1.5, None, True]})
    assert spool.waiting() == 120
    assert spool.send(receiver := Receiver()) == 120
    assert receiver.names == [f"operation {number}" for number in range(120)]
    assert receiver.got[7]["arguments"] == {"number": 7, "nested": {"a": [1.5, None, True]}}
    assert spool.waiting() == 0


def test_an_operation_that_fails_stays_first_and_is_sent_again(spool: Spool) -> None:
    fill(spool, "a", "b", "c")
    receiver = Receiver(None, OSError("away"), TimeoutError("slow"))
    for _ in range(2):
        with pytest.raises(OSError, match=r"away|slow"):
            spool.send(receiver)
    assert spool.send(receiver) == 2
    assert receiver.names == ["a", "b", "b", "b", "c"]
    assert not spool.refused()


def test_a_refused_operation_is_set_aside_with_its_error_and_the_rest_goes_on(spool: Spool) -> None:
    spool.add("a")
    spool.add("b", {"x.txt": "x"}, value=1)
    spool.add("c")
    receiver = Receiver(None, Refused("never"))
    assert spool.send(receiver) == 3
    assert receiver.names == ["a", "b", "c"]
    assert spool.refused() == [{"name": "b", "arguments": {"value": 1}, "error": "never"}]
    assert spool.waiting() == 0


def test_sending_adds_what_came_meanwhile_next_time(spool: Spool) -> None:
    spool.add("a")
    assert spool.send(lambda spool, operation, files: spool.add("b")) == 1
    spool.send(receiver := Receiver())
    assert receiver.names == ["b"]


@pytest.mark.parametrize("links", [pytest.param(True, id="hard link"), pytest.param(False, id="copy")])
def test_files_are_kept_though_the_original_is_deleted_or_replaced(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError("another disk")))
    for name in ("deleted", "replaced"):
        (tmp_path / name).write_text(f"{name}: first")
    spool.add("a", {name: tmp_path / name for name in ("deleted", "replaced")})
    (tmp_path / "deleted").unlink()
    (tmp_path / "new").write_text("second")
    os.replace(tmp_path / "new", tmp_path / "replaced")
    assert files_sent(spool) == {"deleted": b"deleted: first", "replaced": b"replaced: first"}


def test_a_link_is_kept_as_the_file_that_it_names(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    spool.add("a", {"x": tmp_path / "link"})
    (tmp_path / "file").unlink()
    assert files_sent(spool) == {"x": b"content"}


def test_folders_and_texts_are_files_too(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "x").write_bytes(b"\0x")
    (tmp_path / "folder" / "y").write_text("y")
    spool.add("a", {"tree": tmp_path / "folder", "below/note.txt": "naïve"})
    assert files_sent(spool) == {"tree/deep/x": b"\0x", "tree/y": b"y", "below/note.txt": "naïve".encode()}


def test_files_are_removed_once_they_are_sent(spool: Spool) -> None:
    spool.add("a", {"x": "x"})
    with pytest.raises(OSError, match="away"):
        spool.send(Receiver(OSError("away")))
    assert files_sent(spool) == {"x": b"x"}
    assert not [path for path in spool.folder.rglob("*") if path.name != ".lock"]


def test_an_operation_whose_files_are_missing_is_not_kept(spool: Spool, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        spool.add("a", {"x": tmp_path / "absent"})
    assert Spool(spool.folder).waiting() == 0


def test_a_spool_that_is_opened_again_goes_on(spool: Spool) -> None:
    fill(spool, "a", "b")
    with pytest.raises(OSError, match="away"):
        spool.send(Receiver(None, OSError("away")))
    spool.note("run", "id-1")
    spool.note("experiment", "7")
    again = Spool(spool.folder)
    again.add("c")
    assert again.answers() == {"run": "id-1", "experiment": "7"}
    again.send(receiver := Receiver())
    assert receiver.names == ["b", "c"]


def test_a_second_refusal_does_not_hide_the_first(spool: Spool) -> None:
    spool.add("a")
    spool.send(Receiver(Refused("first")))
    again = Spool(spool.folder)
    again.add("b")
    again.send(Receiver(Refused("second")))
    assert [operation["error"] for operation in again.refused()] == ["first", "second"]


def test_files_of_an_operation_that_was_never_finished_are_in_nobodys_way(spool: Spool) -> None:
    """A process that is killed between the files and the operation leaves only the files."""
    for leftover in ("00000001.files", "00000001.building"):
        (spool.folder / leftover).mkdir(parents=True)
        (spool.folder / leftover / "old").write_text("old")
    again = Spool(spool.folder)
    assert again.waiting() == 0
    again.add("a", {"new": "new"})
    assert files_sent(again) == {"new": b"new"}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_comes_out_as_it_went_in(spool: Spool, text: str) -> None:
    spool.add(text, value=text, nested={text: [text]})
    spool.note(text, text)
    again = Spool(spool.folder)
    assert again.send(receiver := Receiver(Refused(text))) == 1
    expected: dict[str, Any] = {"name": text, "arguments": {"value": text, "nested": {text: [text]}}}
    assert receiver.got == [expected]
    assert again.refused() == [expected | {"error": text}]
    assert again.answers() == {text: text}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_a_file(spool: Spool, text: str) -> None:
    spool.add("a", {"x.txt": text})
    assert files_sent(spool) == {"x.txt": text.encode("utf-8", "replace")}


def test_the_lock_is_exclusive_across_processes_and_dies_with_its_holder(spool: Spool) -> None:
    command = [sys.executable, "-c", HOLD, str(spool.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with spool.lock() as mine:
            assert not mine
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with spool.lock() as mine, Spool(spool.folder).lock() as other:
        assert mine
        assert not other


def test_who_waits_for_the_lock_of_a_folder_that_is_removed_gets_one_that_holds(spool: Spool) -> None:
    had: list[bool] = []

    def wait() -> None:
        with Spool(spool.folder).lock(30) as mine, Spool(spool.folder).lock() as other:
            had.extend((mine, other))

    waiter = threading.Thread(target=wait)
    with spool.lock() as mine:
        assert mine
        waiter.start()
        time.sleep(0.2)
        spool.remove_if_done()
    waiter.join()
    assert had == [True, False]


@pytest.mark.parametrize(
    ("errors", "left"),
    [
        pytest.param([None], False, id="all sent"),
        pytest.param([Refused("never")], True, id="refused"),
        pytest.param([OSError("away")], True, id="waiting"),
    ],
)
def test_the_folder_goes_when_nothing_is_left_to_tell(
    spool: Spool, errors: list[Exception | None], left: bool
) -> None:
    spool.add("a", {"x": "x"})
    spool.note("run", "id")
    try:
        spool.send(Receiver(*errors))
    except OSError:
        assert spool.waiting() == 1
    spool.remove_if_done()
    assert spool.folder.exists() == left


def test_all_spools_of_a_folder_are_found_oldest_first(tmp_path: Path) -> None:
    assert spools(tmp_path / "absent") == []
    for name in ("20260102T000000-a", "20260101T000000-b"):
        Spool(tmp_path / name).add(name)
    (tmp_path / "a file").write_text("")
    assert [spool.folder.name for spool in spools(tmp_path)] == ["20260101T000000-b", "20260102T000000-a"]
