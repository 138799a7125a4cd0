"""The funnel: what each stage read, kept, removed and failed, as text and as Markdown."""

from collections import Counter
from collections.abc import Sequence

from tasks.stage import Report, StageResult

COLUMNS = ("stage", "source", "read", "kept", "removed", "failed", "seconds", "")
WIDTHS = (24, 16, 9, 9, 9, 7, 9, 6)
MOST_REASONS = 4


def as_text(results: Sequence[StageResult]) -> str:
    """A table for the terminal, a line for each stage and source."""
    return "\n".join([_line(COLUMNS), *(_line(_cells(result)) for result in results)])


def as_sentence(result: StageResult) -> str:
    """One line for the log."""
    stage, source, read, kept, removed, failed, seconds, cached = _cells(result)
    counts = f"read {read}, kept {kept}, removed {removed}, failed {failed}" if read else "done"
    reasons = main_reasons(result.report)
    how = "from the cache" if cached else f"in {seconds} s"
    return f"{stage} {source}: {counts}{f' ({reasons})' if reasons else ''}, {how}"


def as_markdown(results: Sequence[StageResult]) -> str:
    """A table for Prefect and MLflow, with the most frequent reasons."""
    lines = [
        "| stage | source | read | kept | removed | failed | seconds | cached | reasons |",
        "|---|---|--:|--:|--:|--:|--:|---|---|",
    ]
    rows = ([*_cells(result), main_reasons(result.report)] for result in results)
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


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
        f"{result.computing_seconds:.1f}",
        "cached" if result.cached else "",
    )


def _line(cells: Sequence[str]) -> str:
    return "  ".join(
        f"{cell:<{width}}" if place < 2 or place == len(cells) - 1 else f"{cell:>{width}}"
        for place, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    ).rstrip()
