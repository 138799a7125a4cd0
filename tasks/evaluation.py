"""Evaluation: the loss of a checkpoint on the validation split, for each source."""

import json

from pipeline_config.errors import StageError
from pipeline_config.processes import bound_command
from pipeline_config.settings import Evaluation
from tasks.child import ChildFailed, run_child
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.store import StageOutput, write_json

MEASURES = "evaluation.json"
STAGE = Stage(
    "evaluation", "Evaluate checkpoint", version=1, libraries=("tokenizers", "torch"), artifacts=(MEASURES,)
)


def evaluate_checkpoint(
    run: Run, checkpoint: StageOutput, tokens: StageOutput, settings: Evaluation
) -> StageOutput:
    """`evaluation.json`: `val_loss` and `bits_per_byte` of all rows, for each source and together."""
    return run.stage(STAGE, _build, settings, label="all", inputs=[checkpoint, tokens])


def _build(work: Work) -> Report:
    scratch = work.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    checkpoint, tokens = work.inputs
    config = {
        "checkpoint": str(work.store.path(checkpoint) / "checkpoint"),
        "tokens": str(work.store.path(tokens)),
        "evaluation": work.settings.model_dump(mode="json"),
        "output": str(work.folder / MEASURES),
    }
    write_json(scratch / "config.json", config)
    try:
        run_child(bound_command("model.evaluate", str(scratch / "config.json")), rules=work.rules)
    except ChildFailed as failure:
        raise StageError(f"the evaluation ended with {failure}. Its last output:\n{failure.output}") from None
    return {"measures": json.loads((work.folder / MEASURES).read_text("utf-8"))["all"]}
