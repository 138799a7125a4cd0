"""Databases appear whole or not at all."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tasks.databases import create_once


def make(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table t (x)")
        database.execute("insert into t values (1)")
        database.commit()


def rows(path: Path) -> list[tuple[int]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("select x from t").fetchall()


def test_a_database_is_created_once(tmp_path: Path):
    path = tmp_path / "a" / "x.db"
    create_once(path, make)
    create_once(path, lambda _: pytest.fail("it is there already"))
    assert rows(path) == [(1,)]
    assert [file.name for file in path.parent.iterdir() if "new" in file.name] == []


def test_what_a_killed_creator_left_is_not_taken_for_the_database(tmp_path: Path):
    (tmp_path / ".x.db.new.1").write_bytes(b"half of a database")
    create_once(tmp_path / "x.db", make)
    assert rows(tmp_path / "x.db") == [(1,)]
    assert not (tmp_path / ".x.db.new.1").exists()


def test_a_creator_that_fails_leaves_no_database(tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        create_once(tmp_path / "x.db", lambda _: 1 / 0)
    assert not (tmp_path / "x.db").exists()


def test_processes_at_once_create_one(tmp_path: Path):
    code = (
        "import sqlite3, sys, time; from pathlib import Path; from tasks.databases import create_once\n"
        "def make(p):\n"
        "    open(sys.argv[2], 'a').write('x'); time.sleep(0.5); c = sqlite3.connect(p)\n"
        "    c.execute('create table t (x)'); c.execute('insert into t values (1)'); c.commit(); c.close()\n"
        "create_once(Path(sys.argv[1]), make)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "x.db"), str(tmp_path / "calls")]
    processes = [subprocess.Popen(command, cwd=Path(__file__).parents[2]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert (tmp_path / "calls").read_text() == "x"
    assert rows(tmp_path / "x.db") == [(1,)]
