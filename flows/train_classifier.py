"""A classifier of documents from two labelled sets: `python -m flows.train_classifier FILE.yaml`.

The file holds `positive` and `negative`, each a source of kind `documents` whose name is the label, and
perhaps `training`. The model is used by naming its path in `quality_filtering.classifiers`.
"""

import argparse
import sys
from typing import Any

import yaml
from prefect import flow
from pydantic import ValidationError

from flows import prefect_server
from flows.command_line import errors_in_one_line, fail
from pipeline_config.classifiers import ClassifierTraining
from pipeline_config.environment import check_home
from pipeline_config.errors import SettingsError, TokenmillError
from pipeline_config.settings import Settings, Source
from tasks.classifier import train_classifier as train
from tasks.document_import import import_documents
from tasks.run import open_run
from tasks.steps.classifier import MODEL

MOST_NAME_CHARACTERS = 64


@flow(name="train-classifier", flow_run_name="train classifier {positive.name} against {negative.name}")
def train_classifier(
    positive: Source, negative: Source, training: ClassifierTraining | None = None
) -> dict[str, Any]:
    """The path of the model, and its precision and recall on documents that it was not trained on.

    Args:
        positive: Documents of one label; the source's name is the label.
        negative: Documents of the other label.
        training: How the model is trained.
    """
    if not positive.kind == negative.kind == "documents":
        raise SettingsError("positive and negative must be sources of kind documents, with texts that exist")
    name = f"classifier-{positive.name}-{negative.name}"[:MOST_NAME_CHARACTERS]
    settings = Settings(name=name, sources=(positive, negative))
    with open_run(settings) as run:
        sets = run.for_each(import_documents, settings.sources)
        output = run.keep("classifier", train(run, sets, training or ClassifierTraining()))
        return {"model": str(run.store.path(output) / MODEL), **run.store.report(output)["measures"]}


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="YAML with positive, negative and training")
    chosen = parser.parse_args(arguments)
    errors_in_one_line()
    try:
        asked = read(chosen.file)
        check_home()
        prefect_server.wait()
        result = train_classifier(**asked)
    except TokenmillError as error:
        sys.exit(fail(error, 1))
    print("\n".join(f"{name}: {value}" for name, value in result.items()))


def read(path: str) -> dict[str, Any]:
    """The flow's parameters, from a YAML file.

    Raises:
        SettingsError: it cannot be read, or holds something else.
    """
    kinds = {"positive": Source, "negative": Source, "training": ClassifierTraining}
    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.safe_load(file) or {}
        if not isinstance(found, dict) or not {"positive", "negative"} <= set(found) <= set(kinds):
            raise SettingsError(
                f"{path} must hold positive and negative, and may hold training; nothing else"
            )
        return {name: kinds[name].model_validate(value) for name, value in found.items()}
    except (OSError, ValidationError, yaml.YAMLError) as error:
        raise SettingsError(f"{path} cannot be read as the settings of a classifier: {error}") from None


if __name__ == "__main__":
    main()
