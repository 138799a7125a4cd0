"""What all groups of settings have in common."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]

RANGES = {"minimum": "at least {}", "exclusiveMinimum": "above {}", "maximum": "at most {}"}
RANGES |= {"exclusiveMaximum": "below {}"}


def _tell_ranges(schema: dict[str, Any]) -> None:
    """Adds the range of a number to its description: forms show that, and not the limits."""
    for field in schema["properties"].values():
        limits = [field, *(choice for choice in field.get("anyOf", []) if choice.get("type") != "null")]
        told = [
            text.format(f"{found[name]:,}")
            for found in limits
            for name, text in RANGES.items()
            if name in found
        ]
        if told:
            field["description"] = f"{field.get('description', '')} ({', '.join(told)})".strip()


class Section(BaseModel):
    """A group of settings: immutable, and refusing names that it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, json_schema_extra=_tell_ranges
    )
