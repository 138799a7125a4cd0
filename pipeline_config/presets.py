"""Named settings (`presets/*.yaml`) and `section.field=value` overrides."""

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
