"""A full disk, on a real one: a small tmpfs."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline_config.environment import NEEDED_BYTES

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a tmpfs of so many bytes."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: int) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False
        )
        if done.returncode:
            pytest.skip("needs the right to mount a tmpfs")
        return folder

    yield mount
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_disk_without_room_is_refused_at_once(command: Start, small_disk: Callable[[int], Path]):
    folder = small_disk(NEEDED_BYTES // 2)
    process = command(folder)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "is full" in errors
    assert str(folder) in errors


def test_a_disk_that_fills_up_ends_the_stage(
    command: Start, small_disk: Callable[[int], Path], tmp_path: Path
):
    folder, home = small_disk(400_000), tmp_path / "home"
    home.mkdir()
    (home / "store").symlink_to(folder)
    process = command(home)
    _, errors = process.communicate(timeout=300)
    last_line = errors.strip().splitlines()[-1]
    assert process.returncode == 1
    assert last_line.startswith("error: ")
    assert "full" in last_line
    assert not [
        path for path in folder.glob("*/*") if path.is_dir() and not (path / "manifest.json").exists()
    ]
    assert os.statvfs(folder).f_bavail > 0
