"""Bad input on the command line: one clear error that names the thing, and nothing half-made."""

import gzip
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from flows.build_corpus import build_corpus
from pipeline_config.errors import CanaryError, SourceError
from pipeline_config.presets import load_settings
from tasks.steps.sample_crawl import warc_record

Start = Callable[..., subprocess.Popen[str]]
CUT = 10_000


def run(start: Start, home: Path, *arguments: str, **options: str) -> tuple[int, str]:
    process = start(home, *arguments, **options)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def half_made(home: Path) -> list[Path]:
    """Loose files in the store, outputs without a manifest, and folders of unfinished work."""
    loose = [path for path in home.glob("store/*") if path.is_file()]
    folders = [path for path in home.glob("store/*/*") if path.is_dir()]
    return loose + [path for path in folders if path.name[0] == "." or not (path / "manifest.json").is_file()]


@pytest.mark.parametrize(
    ("preset", "override", "expected"),
    [
        pytest.param("no-such-preset", "name=x", ["no-such-preset", "sample", "mini-crawl"], id="preset"),
        pytest.param(
            "sample",
            "quality_filtering.gopher_quality.min_doc_words=-1",
            ["quality_filtering.gopher_quality.min_doc_words", "-1", "greater than or equal to 0"],
            id="negative threshold",
        ),
        pytest.param("sample", "training.stepz=3", ["training.stepz", "steps"], id="unknown name"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(
    command: Start, tmp_path: Path, preset: str, override: str, expected: list[str]
):
    code, errors = run(command, tmp_path, override, preset=preset)
    assert code == 2
    assert all(part in errors for part in expected)
    assert not (tmp_path / "store").exists()


def crawl_preset(folder: Path) -> str:
    preset = folder / "crawl.yaml"
    source = {"name": "crawl", "kind": "warc", "base": str(folder), "uris": ["page.warc.gz"]}
    settings = {"sources": [source], "url_filtering": {"use_integrated_lists": False}}
    preset.write_text(yaml.safe_dump(settings), "utf-8")
    return str(preset)


RECORD = warc_record("https://a.example/", b"<p>" + bytes(range(32, 127)) * 400)
BAD_FILES = [
    pytest.param(None, "there is no file", id="missing file"),
    pytest.param(b"", "is empty", id="empty WARC"),
    pytest.param(b"<html><p>Hello</html>", "is not a WARC file", id="a page"),
    pytest.param(gzip.compress(b"<html><p>Hello</html>"), "is not a WARC file", id="a compressed page"),
]


@pytest.mark.parametrize(("content", "expected"), BAD_FILES)
def test_a_bad_input_file_is_named(home: Path, tmp_path: Path, content: bytes | None, expected: str):
    if content is not None:
        (tmp_path / "page.warc.gz").write_bytes(content)
    with pytest.raises(SourceError, match=expected) as raised:
        build_corpus(load_settings(crawl_preset(tmp_path)))
    assert "page.warc.gz" in str(raised.value)
    assert not half_made(home)


def test_a_file_of_which_too_little_is_left_ends_the_run(home: Path, tmp_path: Path):
    (tmp_path / "page.warc.gz").write_bytes(RECORD[:-20])
    with pytest.raises(CanaryError, match=r"crawl: 1 of 1 records failed .*: cut_off 1"):
        build_corpus(load_settings(crawl_preset(tmp_path)))
    assert not half_made(home)


def test_an_error_in_a_run_is_the_last_line_and_the_exit_code(command: Start, tmp_path: Path):
    (tmp_path / "page.warc.gz").write_bytes(b"<html><p>Hello</html>")
    code, errors = run(command, tmp_path / "home", preset=crawl_preset(tmp_path))
    last_line = errors.strip().splitlines()[-1]
    assert code == 1
    assert last_line.startswith("error: ")
    assert "page.warc.gz is not a WARC file" in last_line
    assert not half_made(tmp_path / "home")
