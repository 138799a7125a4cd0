"""Making a corpus again: `python -m flows.reprocess takedown LIST [--run RUN] [--retrain]`.

A takedown finds everything that holds a document that must go, computes again what depends on it without it,
proves that nothing is left, and writes a certificate.
"""

import argparse
import sys
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from flows import prefect_server
from flows.build_corpus import build_corpus
from flows.command_line import errors_in_one_line, fail
from flows.prepare_tokens import prepare_tokens
from flows.train_language_model import train_language_model
from pipeline_config.environment import check_home
from pipeline_config.errors import StageError, TokenmillError
from tasks.markup import as_text
from tasks.run import open_run
from tasks.takedown.certificate import certificate_page, certify
from tasks.takedown.proof import remaining
from tasks.takedown.request import Request, holders, open_takedown, settings_without

MOST_ROUNDS, MOST_CHARACTERS = 5, 500_000


@flow(name="takedown", flow_run_name="takedown {takedown_list}")
def takedown(takedown_list: str, run: str = "latest", retrain: bool = False) -> dict[str, Any]:
    """Removes documents from a corpus and from what follows, proves it, and certifies it.

    Args:
        takedown_list: A YAML file with reason, date and entries (any address that fsspec knows).
        run: latest, a run's id or name, or the key or digest of a corpus.
        retrain: Train the model again, too; otherwise its checkpoints are only flagged.
    """
    request = open_takedown(takedown_list, run)
    held = holders(request)
    for number in range(1, MOST_ROUNDS + 1):
        certificate = _reprocess(request, held, retrain, number)
        if certificate is not None:
            page = certificate_page(certificate)
            create_markdown_artifact(
                page[:MOST_CHARACTERS],
                key="takedown-certificate",
                description="What was asked, found, removed",
            )
            return certificate
        held = holders(request)
    raise StageError(f"after {MOST_ROUNDS} rounds near-duplicates of the documents are still found")


def _reprocess(request: Request, held: list[Any], retrain: bool, number: int) -> dict[str, Any] | None:
    """One round; None if the proof found more that must go."""
    settings = settings_without(request)
    reached = request.ledger.run.last("packing") is not None
    with open_run(settings) as new:
        if retrain:
            train_language_model(settings)
        elif reached:
            prepare_tokens(settings)
        else:
            build_corpus(settings)
        left = remaining(request, new)
        if not left:
            return certify(request, new, held, number)
        new.refuse()
        request.widened += left
    return None


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    command = commands.add_parser("takedown", help="remove documents, prove it, and certify it")
    command.add_argument("takedown_list", metavar="LIST", help="YAML file with reason, date and entries")
    command.add_argument("--run", default="latest", help="run or corpus (default: latest)")
    command.add_argument("--retrain", action="store_true", help="train the model again, too")
    chosen = vars(parser.parse_args(arguments))
    errors_in_one_line()
    try:
        check_home()
        prefect_server.wait()
        print(as_text(certificate_page(takedown(**chosen))))
    except TokenmillError as error:
        sys.exit(fail(error, 1))


if __name__ == "__main__":
    main()
