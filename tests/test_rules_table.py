"""Every rule of curation stands in README's table, with the default and the source that its settings give.

    python tests/test_rules_table.py [--write]

prints the table made of the settings, or puts it into README.md between its markers. A rule's source is what
`Source:` in its docstring says, else in that of its group, else in that of the settings' module.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

sys.path.insert(0, str(Path(__file__).parents[1]))

from pydantic import BaseModel

from pipeline_config import curation

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- rules -->", "<!-- /rules -->"
HEAD = "| setting | default | what it decides | source |\n|---|---|---|---|\n"
SECTIONS = {
    "url_filtering": curation.UrlFiltering,
    "text_extraction": curation.TextExtraction,
    "language_identification": curation.LanguageIdentification,
    "quality_filtering": curation.QualityFiltering,
    "deduplication": curation.Deduplication,
    "pii_scrubbing": curation.PiiScrubbing,
}


class Rule(NamedTuple):
    """A row of the table."""

    setting: str
    default: str
    decides: str
    source: str


def rules() -> list[Rule]:
    """The rules as the settings have them."""
    return [rule for name, section in SECTIONS.items() for rule in _rules(name, section(), "")]


def _rules(path: str, section: BaseModel, source: str) -> Iterator[Rule]:
    source = source_of(type(section).__doc__) or source
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _rules(f"{path}.{name}", value, source_of(field.description) or source)
        else:
            decides = re.split(r"\s*\bSource:", " ".join((field.description or "").split()))[0]
            own = source_of(field.description) or source or source_of(curation.__doc__).split(", where")[0]
            yield Rule(f"{path}.{name}", shown(value), decides.removesuffix("."), own)


def source_of(docstring: str | None) -> str:
    """What a docstring says after `Source:` or `Source of the defaults:`, up to the end of the paragraph."""
    found = re.search(
        r"\bSource(?: of the defaults)?:\s*(.*?)(?:\n\s*\n|$)", inspect.cleandoc(docstring or ""), re.DOTALL
    )
    return " ".join(found.group(1).split()).removesuffix(".") if found else ""


def shown(value: Any) -> str:
    """A value as it is written in a preset."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {shown(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, tuple | list | set | frozenset):
        return (
            "[" + ", ".join(map(shown, sorted(value) if isinstance(value, set | frozenset) else value)) + "]"
        )
    if isinstance(value, BaseModel):
        return shown(dict(value))
    return f"{value:,}".replace(",", "_") if isinstance(value, int) else str(value)


def table() -> str:
    """The table in Markdown."""
    rows = (
        " | ".join(cell.replace("|", r"\|") for cell in (f"`{r.setting}`", r.default, *r[2:]))
        for r in rules()
    )
    return HEAD + "".join(f"| {row} |\n" for row in rows)


def rows_in_readme() -> dict[str, Rule]:
    """The rules as README has them, by setting."""
    text = README.read_text("utf-8")
    assert text.count(BEGIN) == text.count(END) == 1, f"README.md needs one {BEGIN} and one {END}"
    lines = text.split(BEGIN)[1].split(END)[0].strip().splitlines()[2:]
    cells = (re.split(r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |")) for line in lines)
    found = [Rule(*(cell.replace(r"\|", "|") for cell in row)) for row in cells]
    return {row.setting.strip("`"): row for row in found}


def test_every_row_gives_the_default_and_source_of_its_setting():
    expected = {rule.setting: rule for rule in rules()}
    wrong = {
        name: (row[1:], expected[name][1:] if name in expected else "no such setting")
        for name, row in rows_in_readme().items()
        if name not in expected or row[1:] != expected[name][1:]
    }
    assert not wrong, "refresh with: python tests/test_rules_table.py --write"


def test_every_rule_has_one_row_and_a_source():
    assert [rule.setting for rule in rules()] == list(rows_in_readme())
    assert [rule.setting for rule in rules() if not rule.source or not rule.decides] == []


def test_every_section_of_curation_is_in_the_table():
    nested = {type(value) for section in SECTIONS.values() for _, value in section()}
    sections = {
        found
        for _, found in inspect.getmembers(curation, inspect.isclass)
        if issubclass(found, BaseModel) and found.__module__ == curation.__name__
    }
    bases = {base for section in sections for base in section.__bases__}
    listed = {
        entry
        for section in sections
        for field in section.model_fields.values()
        for entry in get_args(field.annotation)
    }
    assert sections - nested - bases - listed == set(SECTIONS.values())


def test_the_source_is_the_nearest_one():
    assert (
        source_of("A limit.\n\nSource: Rae et al. 2021,\n  table A1.\n\nMore.") == "Rae et al. 2021, table A1"
    )
    assert source_of(curation.__doc__).startswith("FineWeb")
    by_name = {rule.setting: rule.source for rule in rules()}
    assert "table A1" in by_name["quality_filtering.gopher_repetition.dup_line_frac"]
    assert by_name["pii_scrubbing.ibans"] == "ISO 13616"


def main() -> None:
    """Prints the table or writes it."""
    if "--write" not in sys.argv[1:]:
        print(table(), end="")
        return
    text = README.read_text("utf-8")
    before, rest = text.split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{table()}{END}{rest.split(END)[1]}", "utf-8")


if __name__ == "__main__":
    main()
