"""The plots: the funnel loses nothing, labels are text, and nothing has no picture."""

import html
import json
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.audit.ledger import Ledger
from tasks.reports.corpus_statistics import corpus_statistics
from tasks.reports.figures import (
    LABEL_CHARACTERS,
    MOST_REASONS,
    bars,
    figures_of,
    funnel,
    histogram,
    label,
    sankey_links,
)

Row = dict[str, Any]


def random_funnel(seed: int) -> tuple[list[Row], list[Row]]:
    """Stages and splits of a pipeline with some sources, lengths and reasons; its books balance."""
    choose = random.Random(seed)
    stages: list[Row] = []
    ends = []
    for source in range(choose.randint(1, 4)):
        kept, inputs = choose.randint(0, 500), ("sample_crawl/x",) if choose.random() < 0.5 else ()
        for number in range(choose.randint(1, 4)):
            stages.append(random_stage(choose, f"stage_{number}", f"source-{source}", kept, inputs))
            kept, inputs = stages[-1]["kept"], (stages[-1]["name"],)
        ends.append(stages[-1])
    read, inputs = sum(stage["kept"] for stage in ends), tuple(stage["name"] for stage in ends)
    stages.append(random_stage(choose, "deduplication", "all", read, inputs))
    stages.append(random_stage(choose, "document_split", "all", stages[-1]["kept"], (stages[-1]["name"],)))
    held = choose.randint(0, stages[-1]["kept"])
    counts = {"train": stages[-1]["kept"] - held, "validation": held}
    return stages, [{"split": name, "source": "x", "documents": n} for name, n in counts.items()]


def random_stage(choose: random.Random, name: str, source: str, read: int, inputs: tuple[str, ...]) -> Row:
    """A stage that loses some of what it reads for up to twelve reasons."""
    removed: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for _ in range(choose.randint(0, read)):
        (removed if choose.random() < 0.8 else failed)[f"reason {choose.randint(0, 11)}"] += 1
    lost = removed.total() + failed.total()
    counts = {"read": read, "kept": read - lost, "removed": dict(removed), "failed": dict(failed)}
    return {"stage": name, "source": source, "name": f"{name}/{source}", "inputs": inputs} | counts


def check_flow(stages: list[Row], splits: list[Row]) -> None:
    """What flows into every stage flows out of it, and all that was read ends in a split or a reason."""
    links = sankey_links(stages, splits)
    inflow, outflow = Counter(), Counter()
    for start, end, count, _ in links:
        assert count > 0
        outflow[start] += count
        inflow[end] += count
    for stage in stages:
        name = f"{stage['stage']} ({stage['source']})"
        assert inflow[name] == outflow[name] == stage["read"], name
    starts = sum(count for name, count in outflow.items() if name not in inflow)
    ends = sum(count for name, count in inflow.items() if name not in outflow)
    assert starts == ends == sum(count for name, count in outflow.items() if name.startswith("read: "))


def test_the_funnel_of_a_run_loses_nothing(tiny_ledger: Ledger):
    statistics = corpus_statistics(tiny_ledger, 0, 1, 0)
    assert len(sankey_links(statistics["stages"], statistics["splits"])) > 10
    check_flow(statistics["stages"], statistics["splits"])


@pytest.mark.parametrize("seed", range(20))
def test_the_funnel_of_any_pipeline_loses_nothing(seed: int):
    check_flow(*random_funnel(seed))


@pytest.mark.parametrize("seed", range(5))
def test_links_are_blue_where_records_go_on(seed: int):
    stages, splits = random_funnel(seed)
    red = sum(count for *_, count, kept in sankey_links(stages, splits) if not kept)
    assert red == sum(sum(stage["removed"].values()) + sum(stage["failed"].values()) for stage in stages)


def test_rare_reasons_share_a_link():
    removed = {f"reason {n}": 10 + n for n in range(9)}
    lost = sum(removed.values())
    stage = {"stage": "s", "source": "x", "name": "s/x", "inputs": (), "read": lost, "kept": 0}
    links = sankey_links([stage | {"removed": removed, "failed": {"e": 1}}], [])
    reasons = {end: count for _, end, count, kept in links if not kept}
    assert len(reasons) == MOST_REASONS + 1
    assert reasons["s: reason 8"] == 18
    assert reasons["s: other reasons"] == 10 + 11 + 12 + 1


def test_a_pipeline_that_ended_early_ends_with_what_it_kept():
    stage = {"stage": "s", "source": "x", "name": "s/x", "inputs": (), "removed": {"r": 2}, "failed": {}}
    links = sankey_links([stage | {"read": 5, "kept": 3}], [])
    assert links == [("read: x", "s (x)", 5, True), ("s (x)", "s: r", 2, False)]


def test_a_node_shows_how_many_records_went_through_it():
    stages, splits = random_funnel(3)
    [sankey] = funnel({"stages": stages, "splits": splits}).data
    for stage in stages:
        name = "<br>".join([*stage["stage"].split("_"), f"({stage['source']})"]).replace("<br>(all)", "")
        assert f"{name}<br>{stage['read']:,}" in sankey.node.label or not stage["read"]


def test_a_label_is_text_in_plotly(hostile: SimpleNamespace):
    shown = label(hostile.text)
    assert "<" not in shown
    assert ">" not in shown
    assert '"' not in shown
    assert len(html.unescape(shown)) < 4 * LABEL_CHARACTERS + 30
    shown.encode()


def test_labels_of_figures_hold_no_tag_but_line_breaks(hostile: SimpleNamespace):
    for figure in figures_of(hostile.statistics).values():
        described = json.loads(figure.to_json())["data"][0]
        texts = described.get("node", {}).get("label", []) + list(described.get("y", []))
        for text in texts:
            assert "<" not in str(text).replace("<br>", "")


def test_nothing_has_no_figures(nothing: SimpleNamespace):
    assert figures_of(nothing.statistics) == {}
    assert bars([], "name", "value", "title") is None
    assert histogram([], "name", "title") is None


def test_all_figures_are_there_where_there_are_figures(harmless: SimpleNamespace):
    names = {"funnel", "reasons", "lengths", "languages", "scores", "domains", "clusters"}
    assert figures_of(harmless.statistics).keys() == names


def test_the_first_row_is_the_top_bar():
    [bar] = bars([{"n": "first", "v": 2}, {"n": "second", "v": 1}], "n", "v", "title").data
    assert (list(bar.y), list(bar.x)) == (["second", "first"], [1, 2])


def test_reasons_are_the_most_frequent_thirty():
    rows = [{"stage": "s", "fate": "removed", "reason": f"r{n}", "records": n + 1} for n in range(40)]
    statistics = {"stages": [], "splits": [], "reasons": rows}
    statistics |= {name: [] for name in ("lengths", "languages", "scores", "domains", "clusters")}
    [bar] = figures_of(statistics)["reasons"].data
    assert len(bar.x) == 30
    assert (bar.y[-1], bar.x[-1]) == ("s: r39", 40)
