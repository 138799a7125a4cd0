"""Verify: every byte of every committed file counts, and what is wrong is named."""

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.audit.verification import _check_output, verify
from tasks.lineage import Node
from tasks.store import MANIFEST, Store, files_below, is_sidecar, json_text

FLIPS, FLIPS_OF_A_MANIFEST = 3, 150


@pytest.fixture
def copy(tiny_run: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A copy of the tiny run's outputs, to damage."""
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))
    for name in {node.name for node in tiny_run.record.nodes}:
        shutil.copytree(tiny_run.home / "store" / name, tmp_path / "home" / "store" / name)
    return SimpleNamespace(store=Store(tmp_path / "home" / "store"), run=tiny_run.record)


def problems(store: Store, node: Node) -> list[dict[str, str]]:
    """What is wrong with one output."""
    return list(_check_output(store, node, {"outputs": 0, "files": 0, "bytes": 0}))


def flip(path: Path, dice: random.Random) -> bytes:
    """Changes one byte at a random place; returns what the file held."""
    data = path.read_bytes()
    place = dice.randrange(len(data))
    changed = data[place] ^ dice.randrange(1, 256)
    path.write_bytes(data[:place] + bytes([changed]) + data[place + 1 :])
    return data


def test_an_intact_copy_passes_and_everything_was_read(copy: SimpleNamespace):
    found = verify(copy.run, copy.store)
    files = [p for p in files_below(copy.store.root) if not is_sidecar(p) and p.name != MANIFEST]
    assert (found["passed"], found["problems"]) == (True, [])
    assert found["outputs"] == len({node.name for node in copy.run.nodes})
    assert found["files"] == len(files)
    assert found["bytes"] == sum(path.stat().st_size for path in files)


def test_a_flipped_byte_in_any_file_is_found_and_the_file_named(copy: SimpleNamespace):
    dice, flipped = random.Random(0), 0
    for node in copy.run.nodes:
        folder = copy.store.path(node.output)
        for path in [path for path in files_below(folder) if not is_sidecar(path)]:
            for _ in range(FLIPS):
                intact = flip(path, dice)
                named = {problem["file"] for problem in problems(copy.store, node)}
                described = path.name == MANIFEST  # then the file that it describes otherwise may be named
                assert str(path) in named or (described and named), path
                path.write_bytes(intact)
                flipped += 1
        assert problems(copy.store, node) == []
    assert flipped > 250


def test_a_flipped_byte_anywhere_in_a_manifest_is_found(copy: SimpleNamespace):
    dice = random.Random(1)
    for stage in ("url_filtering", "bpe_training"):
        node = copy.run.last(stage)
        path = copy.store.path(node.output) / MANIFEST
        for _ in range(FLIPS_OF_A_MANIFEST):
            intact = flip(path, dice)
            assert verify_output(copy, node), path.read_bytes()
            path.write_bytes(intact)


def verify_output(copy: SimpleNamespace, node: Node) -> list[dict[str, str]]:
    """All problems of a run that is one node long: its files, its links and its sources."""
    alone = copy.run.model_copy(update={"nodes": [node]})
    return verify(alone, copy.store)["problems"]


def set_in_manifest(folder: Path, name: str, value: object) -> None:
    """Changes a field of a manifest, which is written as the pipeline writes it."""
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    (folder / MANIFEST).write_text(json_text(manifest | {name: value}), "utf-8")


@pytest.mark.parametrize(
    ("damage", "name", "problem"),
    [
        pytest.param(
            lambda f: (f / "extra.txt").write_text("x"), "extra.txt", "not in the manifest", id="extra file"
        ),
        pytest.param(
            lambda f: shutil.copy(f / "documents/part-00000.parquet", f / "documents/_more.parquet"),
            "documents/_more.parquet",
            "not in the manifest",
            id="extra file named as a sidecar, where readers take it for a part",
        ),
        pytest.param(
            lambda f: (f / "removed/part-00001.parquet").unlink(),
            "removed/part-00001.parquet",
            "is missing",
            id="missing",
        ),
        pytest.param(
            lambda f: (f / "documents/part-00000.parquet").write_bytes(b"PAR1"),
            "documents/part-00000.parquet",
            "cannot be read",
            id="cut file",
        ),
        pytest.param(
            lambda f: (f / "documents/part-00000.parquet").write_bytes(b""),
            "documents/part-00000.parquet",
            "cannot be read",
            id="emptied file",
        ),
        pytest.param(
            lambda f: shutil.copy(f / "documents/part-00000.parquet", f / "documents/part-00001.parquet"),
            "documents/part-00001.parquet",
            "sha256 is",
            id="a file in another's place",
        ),
        pytest.param(lambda f: (f / MANIFEST).unlink(), MANIFEST, "cannot be read", id="no manifest"),
        pytest.param(
            lambda f: (f / MANIFEST).write_text("[]"), MANIFEST, "cannot be read", id="a list for a manifest"
        ),
        pytest.param(
            lambda f: (f / MANIFEST).write_bytes(b"\xff"), MANIFEST, "cannot be read", id="no UTF-8"
        ),
        pytest.param(
            lambda f: set_in_manifest(f, "stage", "packing"), MANIFEST, "the stage", id="another stage"
        ),
        pytest.param(lambda f: set_in_manifest(f, "key", "0" * 64), MANIFEST, "the key", id="another key"),
        pytest.param(
            lambda f: set_in_manifest(f, "digest", "0" * 64), MANIFEST, "the digest", id="another digest"
        ),
        pytest.param(
            lambda f: set_in_manifest(f, "files", [{}]), MANIFEST, "cannot be read", id="files without fields"
        ),
        pytest.param(
            lambda f: set_in_manifest(f, "files", None), MANIFEST, "cannot be read", id="no list of files"
        ),
        pytest.param(
            lambda f: set_in_manifest(f, "recipe", 5), MANIFEST, "cannot be read", id="a number for a recipe"
        ),
        pytest.param(
            lambda f: set_in_manifest(f, "more", 1), MANIFEST, "is not as it was", id="a field more"
        ),
        pytest.param(
            lambda f: (f / "_prefect").write_text("{"), "_prefect", "cannot be read", id="damaged sidecar"
        ),
        pytest.param(shutil.rmtree, MANIFEST, "cannot be read", id="no folder"),
    ],
)
def test_damage_is_named(copy: SimpleNamespace, damage, name, problem):
    node = copy.run.last("quality_filtering")
    folder = copy.store.path(node.output)
    damage(folder)
    found = problems(copy.store, node)
    if problem is None:
        assert found == []
        return
    assert [row for row in found if row["file"] == str(folder / name) and problem in row["problem"]], found


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param({"read": 99}, "books do not balance", id="books"),
        pytest.param({"kept": 3, "read": 4}, "holds 2 rows; the report counts 3", id="kept"),
        pytest.param(
            {"removed": {"other": 1}}, "its reasons are {'empty': 1}; the report says", id="reasons"
        ),
    ],
)
def test_a_report_that_tells_another_story_than_the_tables_is_found(hand, make, change, problem):
    def fill(folder: Path) -> None:
        report = json.loads((folder / "report.json").read_text("utf-8"))
        (folder / "report.json").write_text(json_text(report | change), "utf-8")

    rows = [make.document("a"), make.document("b")]
    node = hand.output("quality_filtering", rows, [make.lost("c", "empty")], fill=fill)
    found = problems(hand.store, node)
    assert len(found) == 1
    assert problem in found[0]["problem"]


def test_only_what_an_output_was_made_from_is_checked_for_it(copy: SimpleNamespace):
    flip(copy.store.path(copy.run.last("training").output) / "losses.jsonl", random.Random(2))
    assert verify(copy.run, copy.store, copy.run.last("packing"))["passed"] is True
    found = verify(copy.run, copy.store, copy.run.last("training"))
    assert found["passed"] is False
    assert [Path(problem["file"]).name for problem in found["problems"]] == ["losses.jsonl"]


def test_an_input_with_other_content_than_the_output_was_made_from_is_found(hand, make):
    first, other = (hand.output("document_import", [make.document(i)]) for i in "ab")
    good = hand.output("quality_filtering", [make.document("a")], inputs=[first])
    forged = good.model_copy(update={"inputs": (other.name,)})
    run = hand.run(other, forged, sources=[{"name": "x", "kind": "installed_documentation"}])
    (found,) = verify(run, hand.store)["problems"]
    assert f"does not name the content of its input {other.name}" in found["problem"]


@pytest.fixture
def imported(hand, make, tmp_path: Path) -> SimpleNamespace:
    """A run that imported two files from a folder."""
    from tasks.store import file_digest

    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text(name)
    content = [{"path": p.name, "content": file_digest(p)} for p in sorted(folder.iterdir())]
    node = hand.output("document_import", [make.document("a")], label="web", content=content)
    source = {"name": "web", "kind": "documents", "base": str(folder), "uris": ["*.jsonl"]}
    return SimpleNamespace(folder=folder, run=hand.run(node, sources=[source]), store=hand.store)


def empty_folder(folder: Path) -> None:
    """Removes all files of a folder."""
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("change", "name", "problem"),
    [
        pytest.param(lambda f: None, None, None, id="intact"),
        pytest.param(lambda f: (f / "b.jsonl").write_text("B.jsonl"), "b.jsonl", "has changed", id="changed"),
        pytest.param(lambda f: (f / "b.jsonl").unlink(), "b.jsonl", "is gone", id="one is gone"),
        pytest.param(empty_folder, "", "no file matches", id="all are gone"),
        pytest.param(shutil.rmtree, "", "no file matches", id="the folder is gone"),
        pytest.param(lambda f: (f / "c.jsonl").write_text("x"), None, None, id="a file that was not read"),
    ],
)
def test_a_source_is_read_again(imported: SimpleNamespace, change, name, problem):
    change(imported.folder)
    found = verify(imported.run, imported.store)["problems"]
    if problem is None:
        assert found == []
        return
    assert [(row["file"], problem in row["problem"]) for row in found] == [
        (str(imported.folder / name) if name else str(imported.folder), True)
    ]


def test_a_change_that_keeps_size_and_time_is_found(imported: SimpleNamespace):
    import os

    assert verify(imported.run, imported.store)["passed"]
    path = imported.folder / "a.jsonl"
    stat = path.stat()
    path.write_text("A.jsonl")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not verify(imported.run, imported.store)["passed"]
