"""Named settings (`presets/*.yaml`) and `section.field=value` overrides."""

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from pipeline_config.errors import SettingsError
from pipeline_config.settings import Settings

PRESETS = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """The presets that ship with the project."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_settings(preset: str, overrides: list[str] | tuple[str, ...] = ()) -> Settings:
    """The settings of a preset (a name, or the path of a YAML file) with overrides applied.

    Raises:
        SettingsError: an unknown preset, field or value, with the field's path and what is allowed.
    """
    values = _read_preset(preset)
    for override in overrides:
        _apply(values, override)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_explain(error)) from None


def apply_overrides(settings: Settings, overrides: list[str] | tuple[str, ...]) -> Settings:
    """Settings with overrides applied. A path may be short where only one setting fits it.

    Raises:
        SettingsError: an unknown or ambiguous field, or a refused value.
    """
    values = settings.model_dump(mode="json")
    for override in overrides:
        path, equals, text = override.partition("=")
        _apply(values, f"{full_path(values, path)}{equals}{text}")
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_explain(error)) from None


def full_path(values: dict[str, Any], path: str) -> str:
    """The one path of a setting that a short path fits: `quality.min_doc_words` is enough.

    A part fits a name that begins with it, or that has all its words in order; levels may be left out.

    Raises:
        SettingsError: several settings fit.
    """
    known = list(_paths(values))
    if path in known or path.split(".")[0] == "sources":
        return path
    wanted = path.split(".")
    found = [name for name in known if _fits(wanted, name.split("."))]
    if len(found) > 1:
        raise SettingsError(f"{path}: several settings fit: {', '.join(found)}. Give one of them whole")
    return found[0] if found else path


def _paths(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{name}.")


def _fits(wanted: list[str], name: list[str]) -> bool:
    if not wanted or not _part_fits(wanted[-1], name[-1]):
        return False
    rest = iter(name[:-1])
    return all(any(_part_fits(part, level) for level in rest) for part in wanted[:-1])


def _part_fits(part: str, name: str) -> bool:
    words = iter(name.split("_"))
    return all(any(word == found for found in words) for word in part.split("_"))


def _read_preset(preset: str) -> dict[str, Any]:
    path = Path(preset) if preset.endswith((".yaml", ".yml")) else PRESETS / f"{preset}.yaml"
    if not path.is_file():
        raise SettingsError(
            f"unknown preset {preset!r}: choose one of {', '.join(preset_names())}, or give a .yaml file"
        )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"preset file {path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise SettingsError(
            f"preset file {path} must hold a mapping of settings, not {type(values).__name__}"
        )
    return {"name": path.stem} | values


def _apply(values: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise SettingsError(f"override {override!r} is not of the form section.field=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: {text!r} is not a YAML value: {error}") from None
    *parents, last = path.split(".")
    target: Any = values
    for part in parents:
        target = _descend(target, part, path)
    if isinstance(target, list):
        target[_index(target, last, path)] = value
    else:
        target[last] = value


def _descend(target: Any, part: str, path: str) -> Any:
    if isinstance(target, list):
        return target[_index(target, part, path)]
    child = target.setdefault(part, {})
    if child is None:
        child = target[part] = {}
    if not isinstance(child, dict | list):
        raise SettingsError(f"{path}: {part} holds the value {child!r} and has no fields")
    return child


def _index(target: list[Any], part: str, path: str) -> int:
    if not part.isdigit() or int(part) >= len(target):
        raise SettingsError(f"{path}: {part!r} is not a position in a list of {len(target)}")
    return int(part)


def _explain(error: ValidationError) -> str:
    lines = []
    problems = error.errors()
    located = {problem["loc"][:depth] for problem in problems for depth in range(len(problem["loc"]))}
    for problem in problems:
        if problem["type"] == "too_short" and problem["loc"] in located:
            continue  # a list with a wrong entry counts as empty: the entry's own problem is told
        where = ".".join(str(part) for part in problem["loc"]) or "settings"
        if problem["type"] == "extra_forbidden":
            allowed = ", ".join(_fields_at(problem["loc"][:-1]))
            lines.append(f"{where}: there is no such setting; here are: {allowed}")
        elif problem["type"] == "missing":
            lines.append(f"{where}: this setting is required")
        else:
            lines.append(f"{where}: {problem['input']!r} is refused: {problem['msg']}")
    return "wrong settings\n  " + "\n  ".join(lines)


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) in (Union, UnionType, tuple):
        return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
