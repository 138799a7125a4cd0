"""Markdown and plain text from values that may hold anything: crawled texts stay text."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)  # and what changes the direction or the line
MARKDOWN = re.compile(r"[\\`*_\[\]#!|<>~&:@$]|(?<=www)\.", re.IGNORECASE)  # www. begins a link, too
REFERENCE = re.compile(r"&#(\d+);")
INDENT = "    "
CELL_CHARACTERS = 300


def plain(value: Any, most: int = CELL_CHARACTERS) -> str:
    """A value as one line: control characters and line breaks made visible, cut to `most` characters."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    shown = str(value).encode("utf-8", "replace").decode()
    cut = shown if len(shown) <= most else f"{shown[:most]}… ({len(shown):,} characters)"
    return CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", cut.replace("\n", " ⏎ "))


def escaped(value: Any, most: int = CELL_CHARACTERS) -> str:
    """A value as Markdown that shows its characters and does nothing: no link, no HTML, no table cell.

    Every character that means something in Markdown becomes a character reference.
    """
    return MARKDOWN.sub(lambda found: f"&#{ord(found.group())};", plain(value, most))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], most: int = CELL_CHARACTERS) -> str:
    """A Markdown table; cells are escaped."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(escaped(cell, most) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def table_of(rows: Sequence[dict[str, Any]], *columns: str) -> str:
    """A Markdown table of dictionaries; all their names where no columns are named."""
    if not rows:
        return "*none*"
    names = columns or tuple(rows[0])
    return table(names, ([row.get(name) for name in names] for row in rows))


def as_text(markdown: str) -> str:
    """Markdown made here as text for a terminal: the escaped characters themselves.

    Lines of a `block` are not escaped, and stay as they are.
    """
    lines = markdown.split("\n")
    return "\n".join(line if line.startswith(INDENT) else _without_references(line) for line in lines)


def _without_references(line: str) -> str:
    return REFERENCE.sub(lambda found: chr(int(found.group(1))), line)


def block(text: str, most: int = 4000) -> str:
    """A text as a code block that it cannot end: its lines are indented."""
    cut = text if len(text) <= most else f"{text[:most]}…\n({len(text):,} characters)"
    lines = cut.encode("utf-8", "replace").decode().splitlines() or [""]
    shown = (CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", line) for line in lines)
    return "\n".join(f"{INDENT}{line}" for line in shown)
