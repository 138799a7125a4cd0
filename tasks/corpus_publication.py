"""Corpus publication: the documents with a card, a report and the lineage, in a folder that others can load.

data/train-00000.parquet ...   the documents (hard links to the store's files where the disk allows it)
README.md                      the card, in the Hugging Face dataset format
report.html                    the report
corpus.json                    sources, revisions, weights, recipe and lineage
"""

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from pipeline_config.settings import Settings
from tasks.audit.comparison import versions
from tasks.audit.ledger import Ledger
from tasks.lineage import RunRecord, portable_settings
from tasks.records import flatten
from tasks.reports.corpus_card import corpus_card
from tasks.reports.corpus_report import corpus_report
from tasks.reports.corpus_statistics import corpus_statistics
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.store import StageOutput, write_json

CARD, REPORT_PAGE, DESCRIPTION = "README.md", "report.html", "corpus.json"
STAGE = Stage(
    "corpus_publication",
    "Publish corpus",
    version=1,
    libraries=("duckdb", "jinja2", "plotly", "pyarrow"),
    artifacts=(CARD, REPORT_PAGE, DESCRIPTION),
)
NOT_RECIPE = ("training", "text_generation", "evaluation", "corpus_publication", "model_publication")


def publish_corpus(
    run: Run,
    corpus: StageOutput,
    tokenizer: StageOutput | None = None,
    tokens: StageOutput | None = None,
) -> StageOutput:
    """A folder with the corpus and all that is known of it; it loads with `datasets`.

    Args:
        tokens: token shards of the corpus, for the report.
    """
    lineage = run.record.model_copy(deep=True)
    nodes = [[node.stage, node.label, node.key, node.digest] for node in lineage.nodes]
    published = run.stage(
        STAGE,
        partial(_build, lineage=lineage),
        run.settings.corpus_publication,
        label="all",
        inputs=[output for output in (corpus, tokenizer, tokens) if output],
        content=[run.settings.name, nodes, _recipe(run.settings)],
    )
    run.attach_page(published, REPORT_PAGE, "corpus report")
    return published


def _build(work: Work, lineage: RunRecord) -> Report:
    files = _link_documents(work)
    ledger = Ledger(lineage, work.store)
    chosen = work.settings
    statistics = corpus_statistics(ledger, chosen.samples, chosen.domains, chosen.seed)
    settings = Settings.model_validate(lineage.settings)
    facts = {
        "name": lineage.name,
        "digest": work.inputs[0].digest,
        "languages": list(settings.language_identification.languages),
        "settings": flatten(_recipe(settings)),
        "versions": flatten(versions(work.store, ledger)),
    }
    (work.folder / CARD).write_text(corpus_card(statistics, facts, files), "utf-8", errors="replace")
    (work.folder / REPORT_PAGE).write_text(corpus_report(statistics, facts), "utf-8", errors="replace")
    names = ("name", "digest", "versions")
    described: dict[str, Any] = {name: facts[name] for name in names} | {"recipe": _recipe(settings)}
    described |= {"sources": statistics["sources"], "splits": statistics["splits"]}
    described |= {"lineage": [node.model_dump(mode="json") for node in lineage.nodes]}
    write_json(work.folder / DESCRIPTION, described)
    totals = statistics["totals"]
    return {"measures": {"documents": totals["documents"], "text_bytes": totals["text_bytes"]}}


def _link_documents(work: Work) -> dict[str, list[str]]:
    """Links the corpus' files below `data/`; for each split its files that hold documents."""
    folder = work.folder / "data"
    folder.mkdir(exist_ok=True)
    files: dict[str, list[str]] = {}
    rows = {file["path"]: file.get("rows") for file in work.store.manifest(work.inputs[0])["files"]}
    for path in map(Path, work.shards(work.inputs[0])):
        target = folder / path.name
        target.unlink(missing_ok=True)
        try:
            os.link(path, target)
        except OSError:
            shutil.copy2(path, target)
        if rows[f"documents/{path.name}"]:
            files.setdefault(path.name.split("-")[0], []).append(f"data/{path.name}")
    return files


def _recipe(settings: Settings) -> dict[str, Any]:
    """The settings that decide a corpus, with sources by name."""
    values = {n: v for n, v in portable_settings(settings).items() if n not in NOT_RECIPE}
    return values | {"sources": {source["name"]: source for source in values["sources"]}}
