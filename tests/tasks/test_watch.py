"""The watch: a snapshot is announced once, when it is whole."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_config.settings import Settings, Source
from tasks import watch as module
from tasks.lineage import Node, RunRecord
from tasks.watch import Watcher, files_of

Announced = list[tuple[str, str, str]]


@pytest.fixture
def announced(home: Path, monkeypatch: pytest.MonkeyPatch) -> Announced:
    """What would be an event in Prefect."""
    told: Announced = []
    monkeypatch.setattr(module, "announce_snapshot", lambda *what: told.append(what))
    return told


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "crawl").mkdir()
    return tmp_path / "crawl"


def land(base: Path, dump: str, name: str = "a.warc.gz", size: int = 1) -> None:
    (base / dump).mkdir(exist_ok=True)
    (base / dump / name).write_bytes(b"x" * size)


def preset(base: Path, *uris: str, **more: Any) -> Settings:
    source = Source(
        name="cc", kind="warc", base=str(base), uris=uris or ("{dump}/*.warc.gz",), dump="D*", **more
    )
    return Settings(name="mine", sources=(source,))


def test_what_is_there_at_the_first_look_is_no_news(base: Path, announced: Announced) -> None:
    land(base, "D1")
    watcher = Watcher(preset(base))
    assert [watcher.look() for _ in range(3)] == [[], [], []]
    assert announced == []


def test_a_new_snapshot_is_announced_once_it_did_not_change_between_two_looks(
    base: Path, announced: Announced
) -> None:
    land(base, "D1")
    watcher = Watcher(preset(base))
    watcher.look()
    land(base, "D2")
    assert watcher.look() == []
    land(base, "D2", size=2)  # still being written
    assert watcher.look() == []
    land(base, "D2", "b.warc.gz")
    assert watcher.look() == []
    assert [watcher.look() for _ in range(3)] == [["D2"], [], []]
    assert announced == [("mine", "cc", "D2")]


def test_the_first_snapshot_of_an_empty_folder_is_news(base: Path, announced: Announced) -> None:
    watcher = Watcher(preset(base))
    watcher.look()
    land(base, "D1")
    assert [watcher.look() for _ in range(2)] == [[], ["D1"]]


@pytest.mark.parametrize(
    ("stage", "news"),
    [
        pytest.param("document_split", ["D2"], id="what the last corpus has not"),
        pytest.param("url_filtering", [], id="a run that made no corpus does not count"),
    ],
)
def test_what_was_there_while_nobody_watched_is_news_if_the_preset_was_run(
    base: Path, announced: Announced, stage: str, news: list[str]
) -> None:
    run = RunRecord(id="20260101T000000-1a2b3c4d", name="mine", started="2026", status="finished")
    run.settings = {"sources": [{"name": "cc-D1"}]}
    run.nodes.append(Node(stage=stage, label="all", key="k", digest="d"))
    run.save()
    land(base, "D1")
    land(base, "D2")
    watcher = Watcher(preset(base))
    watcher.look()
    assert watcher.look() == news


def test_a_snapshot_that_is_only_listed_is_not_there_yet_and_keeps_no_other_waiting(
    base: Path, announced: Announced
) -> None:
    (base / "list").write_text("D1")
    land(base, "D1")
    watcher = Watcher(preset(base, "{dump}/a.warc.gz", snapshots="list"))
    watcher.look()
    (base / "list").write_text("D1\nD2\nD3")
    land(base, "D3")
    assert [watcher.look() for _ in range(3)] == [[], ["D3"], []]
    land(base, "D2")
    assert [watcher.look() for _ in range(2)] == [[], ["D2"]]


@pytest.mark.parametrize("uris", [("{dump}/*.gz", "{dump}/ready"), ("{dump}/*.gz", "{dump}/read[y]")])
def test_a_snapshot_is_whole_when_all_its_addresses_name_files(
    base: Path, announced: Announced, uris: tuple[str, ...]
) -> None:
    watcher = Watcher(preset(base, *uris))
    watcher.look()
    land(base, "D1")
    assert [watcher.look() for _ in range(3)] == [[], [], []]
    (base / "D1" / "ready").touch()
    assert [watcher.look() for _ in range(2)] == [[], ["D1"]]


def test_the_files_of_a_snapshot_have_their_sizes(base: Path) -> None:
    land(base, "D1", "b", 2)
    land(base, "D1", "a", 1)
    source = Source(name="cc", kind="warc", base=str(base), uris=("D1/*", "D1/a"))
    assert files_of(source) == [(f"{base}/D1/a", 1), (f"{base}/D1/b", 2), (f"{base}/D1/a", 1)]


class EnoughError(BaseException):
    """Ends the endless watch of a test."""


def test_the_watch_goes_on_after_a_problem_and_tells_of_it_once(
    base: Path, announced: Announced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    path = tmp_path / "mine.yaml"
    source = "name: cc, kind: warc, uris: ['{dump}/*.gz'], dump: D*, snapshots: list"
    path.write_text(f"sources: [{{{source}, base: {base}}}]")
    land(base, "D1")
    looks = []

    def next_look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            (base / "list").write_text("")
        if len(looks) == 5:
            (base / "list").write_text("D1")
        if len(looks) == 8:
            raise EnoughError

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=next_look))
    with pytest.raises(EnoughError):
        module.watch([str(path), "sample"], 7.0)
    assert looks == [7.0] * 8
    assert announced == [("mine", "cc", "D1")]
    problems = [record for record in caplog.records if "cannot read the list of snapshots" in record.message]
    assert len(problems) == 1


def test_presets_without_snapshots_are_not_watched() -> None:
    module.watch(["sample", "mini-crawl"], 3600)
