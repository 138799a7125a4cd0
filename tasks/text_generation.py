"""Text generation: a sample from a checkpoint, with the record that it follows from."""

import json
from typing import Any

from pipeline_config.errors import StageError
from pipeline_config.processes import bound_command
from tasks.child import ChildFailed, run_child
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.store import StageOutput, write_json

RECORD = "generation.json"
STAGE = Stage(
    "text_generation", "Generate text", version=1, libraries=("tokenizers", "torch"), artifacts=(RECORD,)
)


def generate_text(run: Run, checkpoint: StageOutput) -> StageOutput:
    """`generation.json`: prompt, sampler settings, seed, ids and text."""
    output = run.stage(STAGE, _build, run.settings.text_generation, label="all", inputs=[checkpoint])
    run.records.log_text(read_record(run, output)["text"], "generated.txt")
    return output


def read_record(run: Run, output: StageOutput) -> dict[str, Any]:
    """The generation record of an output."""
    return json.loads((run.store.path(output) / RECORD).read_text("utf-8"))


def _build(work: Work) -> Report:
    scratch = work.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    config = {
        "checkpoint": str(work.store.path(work.inputs[0]) / "checkpoint"),
        "text_generation": work.settings.model_dump(mode="json"),
        "output": str(work.folder / RECORD),
    }
    write_json(scratch / "config.json", config)
    try:
        run_child(bound_command("model.generate", str(scratch / "config.json")), rules=work.rules)
    except ChildFailed as failure:
        raise StageError(
            f"text generation ended with {failure}. Its last output:\n{failure.output}"
        ) from None
    return {"measures": {"characters": len(json.loads((work.folder / RECORD).read_text("utf-8"))["text"])}}
