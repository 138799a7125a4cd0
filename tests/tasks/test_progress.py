"""Progress of a stage: in Prefect, and on a terminal."""

import io
import time as real_time
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterId
from prefect.runtime import flow_run

from tasks import progress
from tasks.progress import Artifact, Page, Progress, duration


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """What was sent to Prefect."""
    calls: list[tuple[float, str]] = []
    monkeypatch.setattr(Artifact, "write", lambda self, data, description: calls.append((data, description)))
    return calls


def show(shows: Progress, done: int, total: int | None, note: str = "") -> None:
    """Shows, and waits for the thread that sends."""
    shows.show(done, total, note)
    if shows._sending is not None:
        shows._sending.join()


def test_a_short_stage_shows_nothing(clock: Clock, shown: list) -> None:
    shows = Progress("Pack tokens")
    clock.now += 2.9
    show(shows, 5, 10)
    shows.finish()
    assert shown == []


def test_a_long_stage_is_shown_at_a_bounded_rate(clock: Clock, shown: list) -> None:
    shows = Progress("Pack tokens")
    for second in range(20):
        clock.now += 0.5
        show(shows, second, 100)
    assert [percent for percent, _ in shown] == [5.0, 9.0, 13.0, 17.0]


def test_what_is_shown_is_done_rate_time_left_and_a_note(clock: Clock, shown: list) -> None:
    shows = Progress("Train model")
    shows.unit = "steps"
    show(shows, 100, 5000)  # an earlier attempt got this far
    clock.now += 10
    show(shows, 1100, 5000, "loss 5.310")
    assert shown == [(22.0, "Train model · 1,100 of 5,000 steps · 100/s · 0:39 left · loss 5.310")]


def test_the_last_thing_shown_is_that_it_is_done(clock: Clock, shown: list) -> None:
    shows = Progress("Pack tokens")
    clock.now += 75
    show(shows, 1, 10)
    shows.finish()
    assert shown[-1] == (100.0, "Pack tokens · done in 1:15")


def test_done_is_the_sum_over_the_workers_files(clock: Clock, shown: list, tmp_path: Path) -> None:
    shows = Progress("Pack tokens")
    shows.expect(tmp_path / "progress", total=400)
    clock.now += 10
    shows.update()
    shows._sending.join()
    (tmp_path / "progress").mkdir()
    for name, text in {"00000": "120", "00003": "80", "00004": ""}.items():
        (tmp_path / "progress" / name).write_text(text)
    clock.now += 10
    shows.update()
    shows._sending.join()
    assert [percent for percent, _ in shown] == [0.0, 50.0]


def test_an_unknown_total_shows_what_is_done(clock: Clock, shown: list) -> None:
    shows = Progress("Filter URLs")
    show(shows, 0, None)
    clock.now += 10
    show(shows, 5000, None)
    assert shown == [(0.0, "Filter URLs · 5,000 documents · 500/s")]


def test_a_server_that_does_not_answer_does_not_hold_the_stage_up(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Artifact, "write", lambda *_: real_time.sleep(60))
    shows = Progress("Pack tokens")
    started = real_time.monotonic()
    for _ in range(5):
        clock.now += 10
        shows.show(1, 10)
    assert real_time.monotonic() - started < 5


@pytest.mark.parametrize("terminal", [True, False], ids=["a terminal", "a file"])
def test_a_bar_is_drawn_on_a_terminal_only(
    clock: Clock, shown: list, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    shows = Progress("Pack tokens")
    show(shows, 3, 10)
    shows.finish()
    assert ("Pack tokens" in stream.getvalue()) == terminal


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (7, "0:07"), (754, "12:34"), (11100, "3:05:00")], ids=str
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_page_is_made_once_and_then_written_again() -> None:
    @flow(name="test-page")
    def write() -> list[Any]:
        page = Page("growing-page", "It grows")
        page.show("one")
        first = page.artifact.id
        page.show("one\ntwo")
        return [first, page.artifact.id, flow_run.id]

    first, second, where = write()
    assert first == second
    with progress.get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(id=ArtifactFilterId(any_=[first])))
    assert [(a.data, str(a.flow_run_id)) for a in found] == [("one\ntwo", where)]


def test_a_server_that_is_away_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(Artifact, "write", fail)
    Page("growing-page", "It grows").show("one")
    assert "the page growing-page could not be written: nobody there" in caplog.text
