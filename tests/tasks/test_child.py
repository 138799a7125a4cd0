"""Child processes: what is heard of them, what stops them, and that none is left."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline_config.errors import LimitError
from tasks.child import (
    LINE_CHARACTERS,
    LINES_PER_SECOND,
    ChildFailed,
    Rules,
    run_child,
)

INFO = logging.INFO


def python(code: str, *arguments: object) -> list[str]:
    """The command that runs some code."""
    return [sys.executable, "-u", "-c", code, *map(str, arguments)]


class Heard:
    """Keeps the lines that a child prints, with their level and the time at which they came."""

    def __init__(self, level_of: Callable[[str], int] = lambda line: INFO):
        self.lines: list[tuple[int, str]] = []
        self.times: list[float] = []
        self.rules = Rules(log=self.log, level_of=level_of)

    def log(self, level: int, line: str) -> None:
        self.lines.append((level, line))
        self.times.append(time.monotonic())

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.lines]


def test_a_child_gives_back_what_it_printed() -> None:
    code = "import os, sys; print(os.environ['WORD']); print('err', file=sys.stderr)"
    printed = run_child([sys.executable, "-u", "-c", code], environment={"WORD": "set"})
    assert printed.split() == ["set", "err"]


def test_a_child_that_fails_leaves_its_exit_code_and_the_end_of_its_output() -> None:
    code = "print('x' * 10000); print('the end'); raise SystemExit(3)"
    with pytest.raises(ChildFailed, match="exit code 3") as caught:
        run_child([sys.executable, "-c", code])
    assert caught.value.returncode == 3
    assert caught.value.output.endswith("the end\n")
    assert len(caught.value.output) == 10_000 + len("\nthe end\n")


def test_the_caller_is_asked_while_the_child_runs_and_once_after() -> None:
    polled: list[float] = []
    run_child([sys.executable, "-c", "import time; time.sleep(0.5)"], on_poll=lambda: polled.append(0))
    assert 4 <= len(polled) <= 40


def test_threads_may_run_children_at_the_same_time(tmp_path: Path) -> None:
    printed: dict[int, str] = {}

    def work(number: int) -> None:
        printed[number] = run_child([sys.executable, "-c", f"print({number})"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert printed == {number: f"{number}\n" for number in range(3)}


def test_lines_arrive_while_the_child_runs() -> None:
    heard = Heard()
    run_child(python("import time; print('one'); time.sleep(1); print('two')"), rules=heard.rules)
    assert heard.texts == ["one", "two"]
    assert heard.times[1] - heard.times[0] > 0.5


def test_a_line_that_is_not_whole_yet_waits_for_its_end() -> None:
    heard = Heard()
    code = "import time; print('on', end='', flush=True); time.sleep(0.4); print('e'); print('two', end='')"
    run_child(python(code), rules=heard.rules)
    assert heard.texts == ["one", "two"]


@pytest.mark.parametrize(
    ("printed", "texts"),
    [
        pytest.param(b"10 %\r50 %\r100 %\ndone\n", ["10 %", "50 %", "100 %", "done"], id="returns"),
        pytest.param(b"one\r\ntwo\r\n", ["one", "two"], id="line ends of Windows"),
        pytest.param(b"\n  \n\none  \n", ["one"], id="empty lines and trailing spaces"),
        pytest.param(b"a\xff\xfeb\n", ["a\ufffd\ufffdb"], id="undecodable"),
        pytest.param("é".encode() * 40_000 + b"\n", ["é" * LINE_CHARACTERS], id="long line"),
        pytest.param(b"x" * 3_000_000 + b"\nend\n", ["x" * LINE_CHARACTERS] * 3 + ["end"], id="endless line"),
    ],
)
def test_what_is_heard_of_what_was_printed(printed: bytes, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "printed").write_bytes(printed)
    heard = Heard()
    code = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
    assert run_child(python(code, tmp_path / "printed"), rules=heard.rules).count("\ufffd") in (0, 2)
    assert heard.texts == texts


def test_each_line_has_its_level_and_those_without_are_dropped() -> None:
    levels = {"good": INFO, "bad": logging.ERROR, "noise": 0}
    heard = Heard(levels.__getitem__)
    run_child(python("print('noise'); print('good'); print('bad')"), rules=heard.rules)
    assert heard.lines == [(INFO, "good"), (logging.ERROR, "bad")]


def test_lines_that_come_too_fast_are_withheld_and_counted_and_returned_all_the_same() -> None:
    heard = Heard()
    printed = run_child(python("for n in range(10_000): print(n)"), rules=heard.rules)
    assert len(printed.split()) == 10_000
    shown = [text for text in heard.texts if text.isdigit()]
    notes = [text for text in heard.texts if not text.isdigit()]
    assert shown[:LINES_PER_SECOND] == [str(number) for number in range(LINES_PER_SECOND)]
    assert len(shown) < 10 * LINES_PER_SECOND
    assert notes[-1].endswith("lines more came too fast to be shown)")
    assert sum(int(note[1:].split()[0]) for note in notes) == 10_000 - len(shown)


def test_a_chatty_child_is_heard_at_a_bounded_rate() -> None:
    heard = Heard()
    run_child(python("import time\nfor _ in range(1000): print('x'); time.sleep(0.003)"), rules=heard.rules)
    seconds = heard.times[-1] - heard.times[0]
    assert LINES_PER_SECOND < heard.texts.count("x") <= LINES_PER_SECOND * (seconds + 1) + 1


def test_the_last_lines_of_a_child_that_fails_are_heard() -> None:
    heard = Heard()
    with pytest.raises(ChildFailed):
        run_child(python("print('why'); raise SystemExit(3)"), rules=heard.rules)
    assert heard.texts == ["why"]


TREE = """
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])
open(sys.argv[1], 'w').close()
time.sleep(300)
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
SLEEPER = "import sys, time\nopen(sys.argv[1], 'w').close()\ntime.sleep(300)\n"


@pytest.mark.parametrize(
    ("launcher", "code"),
    [pytest.param((), TREE, id="tree"), pytest.param(TORCHRUN, SLEEPER, id="torchrun")],
)
def test_no_descendant_survives_an_exception(
    tmp_path: Path, launcher: tuple[str, ...], code: str, marked: Any
) -> None:
    (tmp_path / "code.py").write_text(code)
    started = tmp_path / "started"

    def interrupt() -> None:
        if started.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_child(
            [sys.executable, *launcher, str(tmp_path / "code.py"), str(started)],
            on_poll=interrupt,
            environment=marked.environment,
        )
    assert marked.gone()


EATER = "import time; eaten = bytearray(b'x') * 400_000_000; time.sleep(300)"
EATING_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {EATER!r}])"


@pytest.mark.parametrize(
    ("code", "rules", "words"),
    [
        pytest.param(
            "import time; time.sleep(300)",
            lambda: Rules(deadline=time.monotonic() + 1, max_seconds=7200),
            "execution.max_stage_seconds=7200. What was finished is kept: a rerun with a higher limit",
            id="too long",
        ),
        pytest.param(
            EATING_CHILD,
            lambda: Rules(max_memory_bytes=200_000_000),
            r"0.\d\d GB of memory in use, more than execution.max_stage_memory_bytes=200000000 \(0.20 GB\)",
            id="memory of a descendant",
        ),
    ],
)
def test_a_child_that_exceeds_a_limit_is_stopped_with_a_clear_reason(
    code: str, rules: Callable[[], Rules], words: str, marked: Any
) -> None:
    started = time.monotonic()
    with pytest.raises(LimitError, match=words):
        run_child(python(code), environment=marked.environment, rules=rules())
    assert marked.gone()
    assert time.monotonic() - started < 60


def test_a_child_within_its_limits_is_left_alone() -> None:
    rules = Rules(deadline=time.monotonic() + 60, max_seconds=60, max_memory_bytes=2_000_000_000)
    assert run_child(python("import time; time.sleep(0.5); print('done')"), rules=rules) == "done\n"


SAVES = """
import pathlib, signal, sys, time

def save(*_):
    time.sleep(0.5)
    pathlib.Path(sys.argv[1], "saved").touch()
    if sys.argv[2] == "ends":
        sys.exit(0)

signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1], "started").touch()
while True:
    time.sleep(0.1)
"""


def interrupt_when(path: Path) -> Callable[[], None]:
    def interrupt() -> None:
        if path.exists():
            raise KeyboardInterrupt

    return interrupt


@pytest.mark.parametrize(
    ("grace", "does", "saved"),
    [
        pytest.param(30.0, "ends", True, id="time enough"),
        pytest.param(1.5, "goes on", True, id="does not end: killed after the grace"),
        pytest.param(0.0, "ends", False, id="no grace: killed at once"),
    ],
)
def test_a_child_that_is_stopped_may_save_what_it_has(
    tmp_path: Path, grace: float, does: str, saved: bool, marked: Any
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_child(
            python(SAVES, tmp_path, does),
            on_poll=interrupt_when(tmp_path / "started"),
            environment=marked.environment,
            grace_seconds=grace,
        )
    stopped = time.monotonic()
    assert (tmp_path / "saved").exists() is saved
    assert marked.gone()
    assert time.monotonic() - stopped < 5


def test_a_limit_gives_the_same_grace(tmp_path: Path, marked: Any) -> None:
    rules = Rules(deadline=time.monotonic() + 4, max_seconds=4)
    with pytest.raises(LimitError):
        run_child(
            python(SAVES, tmp_path, "ends"), environment=marked.environment, rules=rules, grace_seconds=30
        )
    assert (tmp_path / "saved").exists()
    assert marked.gone()


def test_a_second_interrupt_during_the_grace_kills_at_once(tmp_path: Path, marked: Any) -> None:
    def interrupt_again() -> None:
        while not (tmp_path / "saved").exists():
            time.sleep(0.05)
        signal.raise_signal(signal.SIGINT)

    again = threading.Thread(target=interrupt_again)
    again.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_child(
            python(SAVES, tmp_path, "goes on"),
            on_poll=interrupt_when(tmp_path / "started"),
            environment=marked.environment,
            grace_seconds=60,
        )
    again.join()
    assert marked.gone()
    assert time.monotonic() - started < 30
