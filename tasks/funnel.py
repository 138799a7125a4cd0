"""The funnel: what each stage read, kept, removed and failed, as text and as Markdown."""

from collections import Counter
from collections.abc import Sequence

from tasks.stage import Report, StageResult

COLUMNS = ("stage", "source", "read", "kept", "removed", "failed", "seconds", "")
WIDTHS = (24, 16, 9, 9, 9, 7, 9, 6)
MOST_REASONS = 4


def as_text(results: Sequence[StageResult], header: bool = True) -> str:
    """A table for the terminal, a line for each stage and source."""
    lines = [_line(COLUMNS)] if header else []
    return "\n".join([*lines, *(_line(_cells(result)) for result in results)])


def as_markdown(results: Sequence[StageResult]) -> str:
    """A table for Prefect and MLflow, with the most frequent reasons."""
    lines = [
        "| stage | source | read | kept | removed | failed | reasons | seconds | cached |",
        "|---|---|--:|--:|--:|--:|---|--:|---|",
    ]
    for result in results:
        *counts, seconds, cached = _cells(result)
        lines.append(f"| {' | '.join([*counts, main_reasons(result.report), seconds, cached])} |")
    return "\n".join(lines)


def main_reasons(report: Report) -> str:
    """The most frequent reasons, with their counts."""
    reasons = Counter(report.get("removed", {})) + Counter(report.get("failed", {}))
    return ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common(MOST_REASONS))


def _cells(result: StageResult) -> tuple[str, ...]:
    report = result.report
    counts = ["", "", "", ""]
    if "read" in report:
        removed, failed = sum(report["removed"].values()), sum(report["failed"].values())
        counts = [f"{number:,}" for number in (report["read"], report["kept"], removed, failed)]
    return (
        result.output.stage,
        result.output.label,
        *counts,
        f"{report.get('seconds', 0):.1f}",
        "cached" if result.cached else "",
    )


def _line(cells: Sequence[str]) -> str:
    return "  ".join(
        f"{cell:<{width}}" if place < 2 or place == len(cells) - 1 else f"{cell:>{width}}"
        for place, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    ).rstrip()
