"""The plots of a corpus report, as Plotly figures. Labels are escaped: Plotly reads a little HTML in them."""

import html
import re
from collections import Counter
from typing import Any

import plotly.graph_objects as go

from tasks.markup import plain

Row = dict[str, Any]
MOST_REASONS = 6  # links of their own for each stage; the others share one
LABEL_CHARACTERS = 60
KEPT, REMOVED = "rgba(46,134,171,0.55)", "rgba(214,90,49,0.5)"
NODE = "rgba(110,120,130,0.9)"


def label(value: Any) -> str:
    """A text that Plotly shows as it is."""
    return html.escape(plain(value, LABEL_CHARACTERS))


def sankey_links(stages: list[Row], splits: list[Row]) -> list[tuple[str, str, int, bool]]:
    """(from, to, records, kept) of the funnel.

    What flows into a stage is what flows out of it: what each stage kept goes to the stages that took it, to
    the splits, or (where the pipeline ended early) nowhere; the rest goes to its reasons.
    """
    links: list[tuple[str, str, int, bool]] = []
    names = {stage["name"]: _name(stage) for stage in stages}
    for stage in stages:
        if not any(name in names for name in stage["inputs"]):
            links.append((f"read: {stage['source']}", _name(stage), stage["read"], True))
        takers = [other for other in stages if stage["name"] in other["inputs"]]
        links += [(_name(stage), _name(taker), stage["kept"], True) for taker in takers]
        if stage["stage"] == "document_split":
            counts: Counter[str] = Counter()
            for split in splits:
                counts[split["split"]] += split["documents"]
            links += [(_name(stage), name, count, True) for name, count in sorted(counts.items())]
        links += [(_name(stage), f"{stage['stage']}: {r}", n, False) for r, n in _main_reasons(stage)]
    return [link for link in links if link[2]]


def _name(stage: Row) -> str:
    return f"{stage['stage']} ({stage['source']})"


def _main_reasons(stage: Row) -> list[tuple[str, int]]:
    reasons = Counter(stage["removed"]) + Counter({f"failed {n}": c for n, c in stage["failed"].items()})
    most = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in most[MOST_REASONS:])
    return most[:MOST_REASONS] + ([("other reasons", rest)] if rest else [])


def funnel(statistics: Row) -> go.Figure:
    """The funnel as a Sankey picture."""
    links = sankey_links(statistics["stages"], statistics["splits"])
    names = list(dict.fromkeys(name for link in links for name in link[:2]))
    place = {name: number for number, name in enumerate(names)}
    inflow: Counter[str] = Counter()
    for start, end, count, _ in links:
        inflow[end] += count
        inflow[start] += 0
    totals = {n: inflow[n] or sum(c for s, _, c, _ in links if s == n) for n in names}
    figure = go.Figure(
        go.Sankey(
            arrangement="snap",
            node={
                "label": [_node_label(n, totals[n]) for n in names],
                "color": NODE,
                "pad": 14,
                "thickness": 10,
            },
            link={
                "source": [place[start] for start, *_ in links],
                "target": [place[end] for _, end, *_ in links],
                "value": [count for *_, count, _ in links],
                "color": [KEPT if kept else REMOVED for *_, kept in links],
            },
        )
    )
    return _styled(figure, max(420, 24 * len(names)))


def _node_label(name: str, records: int) -> str:
    """A stage's label in short lines, so that neighbours stay apart; others in one line."""
    if ": " in name:
        return f"{label(name)} {records:,}"
    return "<br>".join(
        [*(label(word) for word in re.split(r"[_ ]", name) if word != "(all)"), f"{records:,}"]
    )


def bars(rows: list[Row], name: str, value: str, title: str) -> go.Figure | None:
    """Horizontal bars, the first row at the top; None without rows."""
    if not rows:
        return None
    shown = rows[::-1]
    figure = go.Figure(
        go.Bar(
            x=[row[value] for row in shown],
            y=[label(row[name]) for row in shown],
            orientation="h",
            marker={"color": KEPT},
        )
    )
    figure.update_yaxes(type="category")
    figure.update_xaxes(title=title)
    return _styled(figure, 140 + 22 * len(rows))


def histogram(rows: list[Row], name: str, title: str) -> go.Figure | None:
    """Upright bars over numbers; None without rows."""
    if not rows:
        return None
    figure = go.Figure(
        go.Bar(
            x=[f"{row[name]:.4g}" for row in rows],
            y=[row["documents"] for row in rows],
            marker={"color": KEPT},
        )
    )
    figure.update_xaxes(title=title, type="category")
    figure.update_yaxes(title="documents")
    return _styled(figure, 320)


def figures_of(statistics: Row) -> dict[str, go.Figure]:
    """All plots of a report, by the id of their place in the page."""
    reasons = [
        {"name": f"{row['stage']}: {row['reason']}", "records": row["records"]}
        for row in sorted(statistics["reasons"], key=lambda row: -row["records"])[:30]
    ]
    lengths = [row | {"characters": round(10 ** row["bin"])} for row in statistics["lengths"]]
    clusters = [row | {"documents": row["clusters"]} for row in statistics["clusters"]]
    figures = {
        "funnel": funnel(statistics) if any(stage["read"] for stage in statistics["stages"]) else None,
        "reasons": bars(reasons, "name", "records", "records"),
        "lengths": histogram(lengths, "characters", "characters, from"),
        "languages": bars(statistics["languages"], "language", "documents", "documents"),
        "scores": histogram(statistics["scores"], "score", "language score, from"),
        "domains": bars(statistics["domains"], "domain", "documents", "documents"),
        "clusters": histogram(clusters, "size", "documents in a cluster"),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def _styled(figure: go.Figure, height: int) -> go.Figure:
    clear = "rgba(0,0,0,0)"
    grid = "rgba(128,128,128,0.3)"
    figure.update_layout(
        template="none",
        height=height,
        paper_bgcolor=clear,
        plot_bgcolor=clear,
        margin={"l": 10, "r": 10, "t": 10, "b": 40},
        font={"family": "system-ui, sans-serif", "size": 12, "color": "#777"},
        showlegend=False,
    )
    figure.update_xaxes(gridcolor=grid, automargin=True)
    figure.update_yaxes(gridcolor=grid, automargin=True)
    return figure
