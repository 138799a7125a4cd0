"""Classifiers of documents, trained from two labelled sets."""

import json
from collections.abc import Sequence

from pipeline_config.classifiers import ClassifierTraining
from pipeline_config.errors import SourceError, StageError
from pipeline_config.processes import bound_command
from tasks.child import ChildFailed, run_child
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.classifier import METRICS, ZEROED_MEMORY
from tasks.store import StageOutput, write_json

STAGE = Stage(
    "classifier",
    "Train classifier",
    version=2,
    libraries=("fasttext-numpy2-wheel", "pyarrow"),
    artifacts=(METRICS,),
)


def train_classifier(run: Run, sets: Sequence[StageOutput], settings: ClassifierTraining) -> StageOutput:
    """`model.bin`, whose labels are the labels of the outputs, and `metrics.json` of held-out documents.

    Raises:
        SourceError: a set is too small.
        StageError: the training ended with an error.
    """
    labels = [documents.label for documents in sets]
    return run.stage(STAGE, _build, settings, label="all", inputs=sets, content=[{"labels": labels}])


def _build(work: Work) -> Report:
    scratch = work.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    config = {
        "sets": {documents.label: work.shards(documents) for documents in work.inputs},
        "settings": work.settings.model_dump(mode="json"),
        "folder": str(work.folder),
    }
    write_json(scratch / "config.json", config)
    try:
        command = bound_command("tasks.steps.classifier", str(scratch / "config.json"))
        run_child(command, environment=ZEROED_MEMORY, rules=work.rules)
    except ChildFailed as failure:
        if "SourceError: " in failure.output:
            raise SourceError(failure.output.rpartition("SourceError: ")[2].strip()) from None
        raise StageError(f"the training ended with {failure}. Its last output:\n{failure.output}") from None
    found = json.loads((work.folder / METRICS).read_text("utf-8"))
    measures = {"accuracy": found["accuracy"]}
    for label, row in found["held_out"].items():
        measures |= {
            f"{name} of {label}": row[name] for name in ("precision", "recall") if row[name] is not None
        }
    return {"measures": measures}
