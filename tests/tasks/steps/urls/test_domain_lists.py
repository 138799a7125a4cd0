"""Compact sets: what is in them, damage, and several processes at once."""

import multiprocessing
import os
from pathlib import Path

import pytest

from pipeline_config.errors import StoreError
from tasks.steps.urls.domain_lists import CompactSet, build_set, compact_set

SIZES = [0, 1, 2, 1000, 50_000]


def numbered(count: int) -> list[bytes]:
    return [f"site-{n}.example".encode() for n in range(count)]


@pytest.mark.parametrize("count", SIZES)
def test_a_set_has_its_members_and_nothing_else(tmp_path, count):
    build_set(tmp_path / "a.set", [(0, numbered(count)), (0, numbered(count // 2))])
    found = CompactSet(tmp_path / "a.set")
    assert found.members == count
    assert all(found.number(f"site-{n}.example") == 0 for n in range(count))
    assert [n for n in range(count, count + 5000) if found.number(f"site-{n}.example") is not None] == []
    assert found.longest == len(max(numbered(count), key=len, default=b""))


def test_a_member_belongs_to_the_first_list_that_has_it(tmp_path):
    build_set(tmp_path / "a.set", [(0, [b"a", b"b"]), (1, [b"b", b"c"]), (2, [b"c", "\u00e9".encode()])])
    found = CompactSet(tmp_path / "a.set")
    assert [found.number(text) for text in ("a", "b", "c", "é", "d", "\ud800")] == [0, 0, 1, 2, None, None]


def test_equal_members_give_equal_bytes(tmp_path):
    build_set(tmp_path / "a.set", [(0, numbered(1000))])
    build_set(tmp_path / "b.set", [(0, numbered(1000)[::-1]), (0, numbered(10))])
    assert (tmp_path / "a.set").read_bytes() == (tmp_path / "b.set").read_bytes()


def test_a_set_is_made_once(home):
    asked = []
    for _ in range(3):
        found = compact_set("one", lambda: asked.append(1) or [(0, [b"a"])])
        assert found.number("a") == 0
    assert asked == [1]


@pytest.mark.parametrize("place", [0, 9, 17, 25, 33, 41, 60, -1])
def test_a_damaged_set_is_made_again(home, place):
    compact_set("one", lambda: [(0, numbered(100))])
    (path,) = (home / "cache" / "lists").glob("*.set")
    whole = bytearray(path.read_bytes())
    for damaged in (whole[:place], b"", whole + b"x"):
        path.write_bytes(damaged)
        assert compact_set("one", lambda: [(0, numbered(100))]).number("site-7.example") == 0
    whole[place] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="not what was written"):
        CompactSet(path)
    assert compact_set("one", lambda: [(0, numbered(100))]).number("site-7.example") == 0
    whole[place] ^= 1
    assert path.read_bytes() == whole


def _make(folder: str, log: str) -> bool:
    def members():
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        return [(0, numbered(50_000))]

    os.environ["TOKENMILL_HOME"] = folder
    return compact_set("shared", members).number("site-49999.example") == 0


def test_processes_that_need_a_set_at_once_make_it_once(tmp_path):
    log = tmp_path / "log"
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.starmap(_make, [(str(tmp_path / "home"), str(log))] * 8) == [True] * 8
    assert len(log.read_text().split()) == 1
    assert sorted(p.suffix for p in (tmp_path / "home/cache/lists").iterdir()) == [".lock", ".set"]


def test_a_folder_that_cannot_be_written_is_named(home):
    (home / "cache").write_text("a file where a folder should be")
    with pytest.raises(StoreError, match=str(Path("cache") / "lists")):
        compact_set("one", lambda: [(0, [b"a"])])
