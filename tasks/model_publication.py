"""Model publication: a checkpoint with its card and lineage, and a registered model in MLflow.

model.safetensors config.json tokenizer.json    the checkpoint (hard links where the disk allows it)
README.md                                       the card
lineage.json                                    what it was made from, down to the sources
preset.yaml                                     the settings, to make it again
"""

import json
import os
import shutil
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import yaml
from safetensors import safe_open

from pipeline_config.settings import Settings
from tasks.audit.comparison import versions
from tasks.audit.ledger import Ledger
from tasks.corpus_publication import CARD
from tasks.lineage import RunRecord, portable_settings
from tasks.records import flatten, mark_tags
from tasks.reports.model_card import model_card
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.store import StageOutput, write_json
from tasks.text_generation import RECORD

LINEAGE, PRESET, WEIGHTS = "lineage.json", "preset.yaml", "model.safetensors"
STAGE = Stage(
    "model_publication",
    "Publish model",
    version=1,
    libraries=("safetensors",),
    artifacts=(CARD, LINEAGE, PRESET),
)


def publish_model(
    run: Run, checkpoint: StageOutput, corpus: StageOutput, sample: StageOutput | None = None
) -> StageOutput:
    """A folder with the checkpoint and its card, recorded as a version of the preset's registered model."""
    lineage = run.record.model_copy(deep=True)
    published = run.stage(
        STAGE,
        partial(_build, lineage=lineage),
        run.settings.model_publication,
        label="all",
        inputs=[output for output in (checkpoint, corpus, sample) if output],
        content=[
            _preset(lineage),
            lineage.code,
            [[n.stage, n.label, n.key, n.digest] for n in lineage.nodes],
        ],
    )
    _register(run, published, checkpoint)
    return published


def _register(run: Run, published: StageOutput, checkpoint: StageOutput) -> None:
    facts = json.loads((run.store.path(published) / LINEAGE).read_text("utf-8"))["facts"]
    measures = run.store.report(checkpoint)["measures"]
    digests = ("checkpoint", "data", "tokenizer", "corpus", "corpus_key")
    run.records.log_model(
        run.stage_records["training"],
        run.settings.model_publication.name or f"tokenmill-{run.settings.name}",
        checkpoint.digest,
        step=facts["training"]["steps"],
        files={
            name: run.store.path(published) / name
            for name in (CARD, LINEAGE, "config.json", "tokenizer.json")
        },
        params=flatten(facts["training"]) | {"parameters": facts["parameters"]},
        tags={name: facts[name] for name in digests}
        | {"run": run.record.id, "code": run.record.code}
        | (mark_tags(run.marks[-1]) if run.marks else {}),
        metrics={name: measures[name] for name in ("last_train_loss", "last_val_loss")},
        data=run.record.at("packing")[-1],
    )


def _build(work: Work, lineage: RunRecord) -> Report:
    checkpoint = work.store.path(work.inputs[0]) / "checkpoint"
    for path in sorted(checkpoint.iterdir()):
        _link(path, work.folder / path.name)
    facts = _facts(work, lineage)
    losses = (work.store.path(work.inputs[0]) / "losses.jsonl").read_text("utf-8").splitlines()
    sample = (
        json.loads((work.store.path(work.inputs[2]) / RECORD).read_text("utf-8")) if work.inputs[2:] else None
    )
    card = model_card(facts, [json.loads(line) for line in losses], sample)
    preset = yaml.safe_dump(_preset(lineage), sort_keys=False, allow_unicode=True)
    (work.folder / PRESET).write_text(preset, "utf-8")
    (work.folder / CARD).write_text(card, "utf-8", errors="replace")
    nodes = [node.model_dump(mode="json") for node in lineage.nodes]
    write_json(work.folder / LINEAGE, {"facts": facts, "lineage": nodes})
    return {"measures": {"parameters": facts["parameters"], "training_tokens": facts["tokens"]}}


def _facts(work: Work, lineage: RunRecord) -> dict[str, Any]:
    settings = Settings.model_validate(lineage.settings)
    training = settings.training.model_dump(mode="json")
    checkpoint, corpus = work.inputs[:2]
    config = json.loads((work.folder / "config.json").read_text("utf-8"))
    steps = work.store.report(checkpoint)["measures"]["steps"]
    return {
        "name": work.settings.name or lineage.name,
        "preset": lineage.name,
        "code": lineage.code,
        "languages": list(settings.language_identification.languages),
        "model": training.pop("model"),
        "training": training,
        "parameters": count_parameters(work.folder / WEIGHTS),
        "tokens": steps * training["rows_per_step"] * settings.training.model.max_context,
        "vocabulary_size": config["vocabulary_size"],
        "checkpoint": checkpoint.digest,
        "data": config["tokens_digest"],
        "tokenizer": config["tokenizer_digest"],
        "corpus": next(node.digest for node in lineage.nodes if node.stage == "document_split"),
        "corpus_key": corpus.key,
        "versions": flatten(versions(work.store, Ledger(lineage, work.store))),
    }


def _preset(lineage: RunRecord) -> dict[str, Any]:
    return portable_settings(Settings.model_validate(lineage.settings))


def count_parameters(weights: Path) -> int:
    """Numbers in a safetensors file; tied weights are stored, and counted, once."""
    with safe_open(weights, "numpy") as file:
        return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
