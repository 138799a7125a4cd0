"""The page sandbox: what a page may do to its child, and that it costs only itself."""

import faulthandler
import os
import signal
import time
from pathlib import Path

import pytest

from tasks.steps.pages import sandbox as module
from tasks.steps.pages.sandbox import LimitExceeded, PageFailed, PageSandbox

MEMORY_BYTES = 200_000_000


def page(payload):
    """Does what the payload says; anything else comes back in upper case."""
    actions = {
        "loop": loop,
        "fill": lambda: bytearray(10 * MEMORY_BYTES),
        "exit": lambda: os._exit(3),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "crash": lambda: (faulthandler.disable(), os.kill(os.getpid(), signal.SIGSEGV)),
        "raise": lambda: int("no number"),
        "raise_much": lambda: {}["x" * 1000],
        "recurse": recurse,
        "sleep": lambda: time.sleep(0.6),
        "pid": os.getpid,
    }
    return actions[payload]() if payload in actions else payload.upper()


def loop():
    while True:
        pass


def recurse():
    return recurse()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def sandbox():
    """A sandbox around `page`, closed after the test."""
    made = PageSandbox(page, cpu_seconds=0.3, memory_bytes=MEMORY_BYTES)
    yield made
    made.close()


def test_a_result_comes_back(sandbox):
    assert [sandbox("one"), sandbox("two")] == ["ONE", "TWO"]


@pytest.mark.parametrize(
    ("payload", "error", "reason"),
    [
        pytest.param("loop", LimitExceeded, "cpu_limit", id="endless_loop"),
        pytest.param("fill", LimitExceeded, "memory_limit", id="memory_bomb"),
        pytest.param("exit", LimitExceeded, "exit_3", id="exit"),
        pytest.param("kill", LimitExceeded, "killed", id="killed"),
        pytest.param("crash", LimitExceeded, "crashed", id="segmentation_fault"),
        pytest.param("recurse", PageFailed, "recursion_limit", id="recursion"),
        pytest.param(
            "raise", PageFailed, "ValueError: invalid literal for int() with base 10: 'no number'", id="error"
        ),
    ],
)
def test_a_page_that_breaks_its_child_fails_alone(sandbox, payload, error, reason):
    with pytest.raises(PageFailed) as caught:
        sandbox(payload)
    assert (type(caught.value), str(caught.value)) == (error, reason)
    assert sandbox("next") == "NEXT"


def test_a_long_message_is_cut(sandbox):
    with pytest.raises(PageFailed) as caught:
        sandbox("raise_much")
    assert len(str(caught.value)) == 300


def test_waiting_is_not_cpu_time(sandbox):
    assert sandbox("sleep") is None


def test_the_limit_is_per_page_not_per_child(sandbox):
    """Pages that together take longer than the limit pass, all in one child."""

    def spin(seconds: float) -> int:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return os.getpid()

    spinning = PageSandbox(spin, cpu_seconds=0.3, memory_bytes=MEMORY_BYTES)
    try:
        assert len({spinning(0.1) for _ in range(6)}) == 1
    finally:
        spinning.close()


def test_a_page_that_breaks_its_child_is_tried_once_more(tmp_path):
    """The first attempt leaves a mark and dies; the second one finds it and succeeds."""
    marks = tmp_path / "attempts"

    def die_once(payload: str) -> int:
        with marks.open("a") as file:
            file.write("x")
        return marks.stat().st_size if marks.stat().st_size > 1 else os._exit(1)

    sandbox = PageSandbox(die_once, cpu_seconds=5, memory_bytes=MEMORY_BYTES)
    try:
        assert sandbox("page") == 2
    finally:
        sandbox.close()


def test_a_page_that_raises_is_not_tried_again(tmp_path):
    marks = tmp_path / "attempts"

    def fail(payload: str) -> None:
        with marks.open("a") as file:
            file.write("x")
        raise KeyError(payload)

    sandbox = PageSandbox(fail, cpu_seconds=5, memory_bytes=MEMORY_BYTES)
    with pytest.raises(PageFailed, match="KeyError: 'page'"):
        sandbox("page")
    sandbox.close()
    assert marks.read_text() == "x"


def test_a_child_is_kept_from_page_to_page_and_dies_with_close(sandbox):
    pids = {sandbox("pid") for _ in range(5)}
    [pid] = pids
    assert is_alive(pid)
    sandbox.close()
    assert not is_alive(pid)
    sandbox.close()


def test_a_child_is_replaced_after_its_share_of_pages(monkeypatch, sandbox):
    monkeypatch.setattr(module, "PAGES_PER_CHILD", 3)
    pids = [sandbox("pid") for _ in range(7)]
    assert [len(set(pids[start : start + 3])) for start in (0, 3, 6)] == [1, 1, 1]
    assert len(set(pids)) == 3
    assert [is_alive(pid) for pid in dict.fromkeys(pids)] == [False, False, True]


def test_a_child_that_dies_between_pages_costs_no_page(sandbox):
    os.kill(sandbox("pid"), signal.SIGKILL)
    assert sandbox("next") == "NEXT"


def test_a_large_page_passes_both_ways(sandbox):
    assert len(sandbox("a" * 20_000_000)) == 20_000_000


def test_a_batch_comes_back_in_order(sandbox):
    assert sandbox.map(["one", "two", "three"]) == ["ONE", "TWO", "THREE"]
    assert sandbox.map([]) == []


@pytest.mark.parametrize("bad", ["loop", "fill", "exit", "raise", "recurse"])
def test_a_bad_page_of_a_batch_costs_only_itself(sandbox, bad):
    before, failure, after = sandbox.map(["one", bad, "two"])
    assert (before, after) == ("ONE", "TWO")
    assert isinstance(failure, PageFailed)


def test_a_batch_of_bad_pages_fails_page_by_page(sandbox):
    failures = [str(failure) for failure in sandbox.map(["exit", "kill", "raise", "fill"])]
    assert failures == [
        "exit_3",
        "killed",
        "ValueError: invalid literal for int() with base 10: 'no number'",
        "memory_limit",
    ]


def test_a_batch_may_be_larger_than_a_childs_share(monkeypatch, sandbox):
    monkeypatch.setattr(module, "PAGES_PER_CHILD", 3)
    pids = sandbox.map(["pid"] * 8)
    assert [len(set(pids[start : start + 3])) for start in (0, 3, 6)] == [1, 1, 1]
    assert len(set(pids)) == 3


@pytest.mark.parametrize(
    ("payload", "result"),
    [
        pytest.param("one", "ONE", id="the_first_is_enough"),
        pytest.param("loop", "next loop", id="after_two_kills"),
        pytest.param("raise", "next raise", id="after_an_error"),
    ],
)
def test_what_one_function_fails_on_the_next_one_gets(payload, result):
    sandbox = PageSandbox(
        [page, lambda payload: f"next {payload}"], cpu_seconds=0.2, memory_bytes=MEMORY_BYTES
    )
    assert sandbox.map([payload, "two"]) == [result, "TWO"]
    sandbox.close()


def test_a_page_that_breaks_all_functions_fails(tmp_path):
    """Each function tries a page that kills it twice; the last cause is the reason."""
    marks = tmp_path / "attempts"

    def die(payload: str) -> None:
        with marks.open("a") as file:
            file.write("x")
        os._exit(1)

    sandbox = PageSandbox([die, die], cpu_seconds=5, memory_bytes=MEMORY_BYTES)
    [failure] = sandbox.map(["page"])
    assert (str(failure), marks.read_text()) == ("exit_1", "xxxx")
    sandbox.close()
