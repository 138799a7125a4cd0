"""Progress on the page of a stage."""

from pathlib import Path
from uuid import uuid4

import pytest

from tasks import progress
from tasks.progress import Progress


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """What was sent to Prefect."""
    calls: list[tuple[str, float]] = []

    def create(progress: float, description: str):
        calls.append((f"create {description}", progress))
        return uuid4()

    monkeypatch.setattr(progress, "create_progress_artifact", create)
    monkeypatch.setattr(
        progress, "update_progress_artifact", lambda _, progress: calls.append(("update", progress))
    )
    return calls


def test_a_short_stage_shows_nothing(clock: Clock, shown: list) -> None:
    shows = Progress("Pack tokens")
    clock.now += 2.9
    shows.show(50.0)
    assert shown == []


def test_a_long_stage_is_shown_at_a_bounded_rate(clock: Clock, shown: list) -> None:
    shows = Progress("Pack tokens")
    for second in range(20):
        clock.now += 0.5
        shows.show(float(second))
    assert [name for name, _ in shown] == ["create Pack tokens", "update", "update", "update"]
    assert [percent for _, percent in shown] == [5.0, 9.0, 13.0, 17.0]


def test_done_is_the_share_of_the_shards_with_books(clock: Clock, shown: list, tmp_path: Path) -> None:
    shows = Progress("Pack tokens")
    shows.expect(tmp_path / "shards", total=4)
    clock.now += 10
    shows.update()
    (tmp_path / "shards").mkdir()
    for name in ("00000.json", "00003.json", ".00001.json.77"):
        (tmp_path / "shards" / name).touch()
    clock.now += 10
    shows.update()
    assert [percent for _, percent in shown] == [0.0, 50.0]


def test_an_update_before_anything_is_expected_shows_nothing(clock: Clock, shown: list) -> None:
    shows = Progress("Pack tokens")
    clock.now += 10
    shows.update()
    assert shown == []
