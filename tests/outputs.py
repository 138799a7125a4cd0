"""What a data folder's store holds."""

from pathlib import Path

from tasks.store import MANIFEST


def manifests(home: Path) -> dict[str, str]:
    """Manifests of all outputs (recipe, files and their SHA-256), by `stage/key`."""
    found = home.glob(f"store/*/*/{MANIFEST}")
    return {f"{path.parts[-3]}/{path.parts[-2]}": path.read_text("utf-8") for path in found}
