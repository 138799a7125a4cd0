"""The loss of a checkpoint on its validation split: `python -m flows.evaluate [RUN]`."""

import argparse
import sys
from typing import Any

from prefect import flow

from flows import prefect_server
from flows.command_line import errors_in_one_line, fail
from pipeline_config.environment import check_home
from pipeline_config.errors import AuditError, TokenmillError
from pipeline_config.settings import Evaluation, Settings
from tasks.evaluation import evaluate_checkpoint
from tasks.lineage import find_run
from tasks.run import open_run

MOST_NAME_CHARACTERS = 64


@flow(name="evaluate", flow_run_name="evaluate {run}")
def evaluate(run: str = "latest", evaluation: Evaluation | None = None) -> dict[str, Any]:
    """The loss and the bits per byte of a checkpoint on the whole validation split.

    Args:
        run: latest, a run's id or name, or the key or digest of a checkpoint.
        evaluation: How much of the split is taken; by default what the settings of the run say.
    """
    record = find_run(run)
    training, packing = record.last("training"), record.last("packing")
    if training is None or packing is None:
        raise AuditError(f"the run {record.id} ({record.name}) has trained no model")
    name = f"evaluation-of-{record.name}"[:MOST_NAME_CHARACTERS]
    execution = {"workers": record.settings["execution"]["workers"]}
    settings = Settings.model_validate(record.settings | {"name": name, "execution": execution})
    with open_run(settings) as new:
        output = evaluate_checkpoint(new, training.output, packing.output, evaluation or settings.evaluation)
        return new.store.report(output)["measures"]


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="latest", help="run or checkpoint (default: latest)")
    chosen = parser.parse_args(arguments)
    errors_in_one_line()
    try:
        check_home()
        prefect_server.wait()
        measures = evaluate(chosen.run)
    except TokenmillError as error:
        sys.exit(fail(error, 1))
    print("  ".join(f"{name} {value:,.4g}" for name, value in measures.items()))


if __name__ == "__main__":
    main()
