"""Verify: every file against its manifest, every stage's books, every link of the chain, every input."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline_config.errors import LedgerError, TokenmillError
from pipeline_config.settings import Settings
from tasks.lineage import Node, RunRecord
from tasks.sources import source_files
from tasks.stage import check_books
from tasks.store import (
    MANIFEST,
    REPORT,
    Store,
    content_digest,
    describe_file,
    digest_of,
    file_digest,
    files_below,
    is_sidecar,
    json_text,
)

Problem = dict[str, str]
THREADS = 4


def verify(run: RunRecord, store: Store, node: Node | None = None) -> dict[str, Any]:
    """Checks a run's outputs, or those that one of them was made from.

    Returns:
        `passed`, `outputs` and `files` that were checked, `bytes`, and `problems`: file and what is wrong.
    """
    nodes = run.upstream(node) if node else run.nodes
    checked: dict[str, Any] = {"outputs": 0, "files": 0, "bytes": 0}
    problems: list[Problem] = []
    for found in {node.name: node for node in nodes}.values():
        checked["outputs"] += 1
        problems += _check_output(store, found, checked)
        problems += _check_links(run, store, found)
    problems += _check_sources(run, store)
    return {"run": run.id, "passed": not problems, **checked, "problems": problems}


def _problem(path: Path, what: str) -> Problem:
    return {"file": str(path), "problem": what}


def _check_output(store: Store, node: Node, checked: dict[str, Any]) -> Iterator[Problem]:
    folder = store.path(node.output)
    path = folder / MANIFEST
    try:
        text = path.read_text("utf-8")
        manifest = json.loads(text)
        files = {file["path"]: file for file in manifest["files"]}
        stated = {name: manifest[name] for name in ("stage", "key", "digest")}
        found = {"stage": manifest["recipe"]["stage"], "key": digest_of(manifest["recipe"])}
        found["digest"] = content_digest(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield _problem(path, f"cannot be read: {error!r}")
        return
    if store.computation(node.output).get("manifest") != file_digest(path) or text != json_text(manifest):
        yield _problem(path, "is not as it was written")
    for name, value in found.items():
        if not value == stated[name] == getattr(node, name):
            yield _problem(path, f"what it holds does not give the {name} {getattr(node, name)}")
    yield from _check_files(folder, files, checked)
    yield from _check_counts(folder, files, node)
    yield from _check_sidecars(folder)


def _check_files(folder: Path, files: dict[str, Any], checked: dict[str, Any]) -> Iterator[Problem]:
    present = {
        path.relative_to(folder).as_posix()
        for path in files_below(folder)
        if not is_sidecar(path) or path.parent != folder  # deeper, a table's readers would take it for a part
    }
    for name in sorted(present - files.keys() - {MANIFEST}):
        yield _problem(folder / name, "is not in the manifest")
    for name in sorted(files.keys() - present):
        yield _problem(folder / name, "is missing")
    with ThreadPoolExecutor(THREADS) as pool:
        both = sorted(files.keys() & present)
        for name, problem in zip(both, pool.map(lambda n: _compare(folder, files[n]), both), strict=True):
            checked["files"] += 1
            checked["bytes"] += (folder / name).stat().st_size
            if problem:
                yield _problem(folder / name, problem)


def _compare(folder: Path, expected: dict[str, Any]) -> str | None:
    try:
        found = describe_file(folder / expected["path"], folder)
    except Exception as error:  # a damaged Parquet file fails in many ways
        return f"cannot be read: {error}"
    wrong = [name for name in expected if found.get(name) != expected[name]]
    return ", ".join(f"{name} is {found.get(name)}, not {expected[name]}" for name in wrong) or None


def _check_counts(folder: Path, files: dict[str, Any], node: Node) -> Iterator[Problem]:
    """The report against itself, and against the rows of the tables."""
    path = folder / REPORT
    try:
        report = json.loads(path.read_text("utf-8"))
        check_books(report, f"{node.stage} {node.label}", max_failed_share=1.0)
    except LedgerError as error:
        yield _problem(path, str(error))
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError, TokenmillError) as error:
        yield _problem(path, f"cannot be read: {error!r}")
        return
    if "read" not in report:
        return
    lost = report["read"] - report["kept"]
    for table, count in (("documents", report["kept"]), ("removed", lost), ("annotations", report["read"])):
        rows = _rows(files, table)
        if rows is not None and rows != count:
            yield _problem(folder / table, f"holds {rows} rows; the report counts {count}")
    yield from _check_reasons(folder, report)


def _check_reasons(folder: Path, report: dict[str, Any]) -> Iterator[Problem]:
    counted: dict[str, int] = {}
    try:
        for path in sorted((folder / "removed").glob("*.parquet")):
            for reason in pq.read_table(path, columns=["reason"])["reason"].to_pylist():
                counted[reason] = counted.get(reason, 0) + 1
    except Exception:  # the file itself is reported already
        return
    stated = {name: report["removed"].get(name, 0) + report["failed"].get(name, 0) for name in counted}
    if counted != stated:
        yield _problem(folder / "removed", f"its reasons are {counted}; the report says {stated}")


def _rows(files: dict[str, Any], table: str) -> int | None:
    found = [file.get("rows", 0) for name, file in files.items() if name.startswith(f"{table}/")]
    return sum(found) if found else None


def _check_sidecars(folder: Path) -> Iterator[Problem]:
    """What lies beside an output says how it came about; it must at least be readable."""
    for path in sorted(folder.glob("_*")):
        try:
            json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            yield _problem(path, f"cannot be read: {error}")


def _check_links(run: RunRecord, store: Store, node: Node) -> Iterator[Problem]:
    """Whether the inputs that the run names are those that the output was made from."""
    try:
        inputs = store.manifest(node.output)["recipe"]["inputs"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # which is reported already
    for found in (found for found in run.nodes if found.name in node.inputs):
        if found.digest not in inputs:
            path = store.path(node.output) / MANIFEST
            yield _problem(path, f"does not name the content of its input {found.name} ({found.digest})")


def _check_sources(run: RunRecord, store: Store) -> Iterator[Problem]:
    """Whether the sources are still there with the content that was read."""
    settings = Settings.model_validate(run.settings)
    for source in settings.sources:
        if source.kind == "installed_documentation" or source.dataset:
            continue
        first = next((n for n in run.nodes if n.label == source.name), None)
        expected = _contents(store, first) if first else {}
        try:
            found = {file.path: file.identity for file in source_files(source, store, fresh=True)}
        except TokenmillError as error:
            yield {"file": source.base or source.name, "problem": str(error)}
            continue
        for name in sorted(expected):
            if found.get(name) != expected[name]:
                what = "is gone" if name not in found else "has changed since it was read"
                yield {"file": f"{source.base}/{name}", "problem": what}


def _contents(store: Store, node: Node) -> dict[str, str]:
    try:
        inputs = store.manifest(node.output)["recipe"]["inputs"]
        return {part["path"]: part["content"] for part in inputs if isinstance(part, dict) and "path" in part}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # which is reported already
