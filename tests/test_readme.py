"""README tells the truth about the tree, the presets and the stages."""

import re
from pathlib import Path

import pytest

from pipeline_config.presets import preset_names

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text("utf-8")
TREE = README.split("## The file tree")[1].split("```")[1]
TOP_LEVEL = {"flows", "tasks", "pipeline_config", "model", "tests", "infra"}
FILES = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"}


def files_in_tree() -> set[str]:
    """Paths that the tree in README names; names are relative to the folder line above them."""
    found: set[str] = set()
    folders: dict[int, str] = {}
    for line in filter(str.strip, TREE.splitlines()):
        indent = len(line) - len(line.lstrip())
        words = line.split()
        parent = "".join(name for depth, name in sorted(folders.items()) if depth < indent)
        if words[0].endswith("/"):
            folders = {depth: name for depth, name in folders.items() if depth < indent} | {indent: words[0]}
            parent += words[0]
        found |= {parent + word for word in words if re.fullmatch(r"[\w.]+\.(py|sh|txt)", word)}
    return found


def files_on_disk() -> set[str]:
    packages = ("flows", "tasks", "pipeline_config", "model", "infra")
    return {
        path.relative_to(PROJECT).as_posix()
        for package in packages
        for path in (PROJECT / package).rglob("*")
        if path.suffix in (".py", ".sh", ".txt") and path.name != "__init__.py"
    }


def test_the_file_tree_is_the_one_on_disk():
    assert files_in_tree() == files_on_disk()


def test_the_top_level_holds_nothing_else():
    names = {path.name for path in PROJECT.iterdir() if not path.name.startswith(".")}
    assert names <= TOP_LEVEL | FILES


@pytest.mark.parametrize("preset", preset_names())
def test_readme_names_every_preset(preset: str):
    assert preset in README


def test_readme_names_every_stage():
    stages = {
        match.group(1)
        for path in (PROJECT / "tasks").glob("*.py")
        if (match := re.search(r'^STAGE = Stage\(\s*"(\w+)"', path.read_text("utf-8"), re.MULTILINE))
    }
    assert len(stages) == 17
    assert {stage for stage in stages if f"`{stage}`" not in README} == set()


def test_no_path_of_a_machine_is_in_the_project():
    texts = [
        path
        for path in PROJECT.rglob("*.[pymst]*")
        if not {".venv", "__pycache__"} & set(path.parts) and path.is_file()
    ]
    needle = "/work" + "/"
    assert not [path for path in texts if needle in path.read_text("utf-8", "ignore")]
