"""Making a corpus again.

    python -m flows.reprocess snapshots PRESET [section.field=value ...] [--goal model]
    python -m flows.reprocess takedown LIST [--run RUN] [--retrain]

`snapshots` looks for new snapshots of the preset's sources: only they are cleaned, then deduplicated against
all that was there, and a new version of the corpus appears. A takedown finds everything that holds a document
that must go, computes again what depends on it without it, proves that nothing is left, and writes a
certificate.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any, Literal

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from flows import prefect_server
from flows.build_corpus import build_corpus
from flows.command_line import Outcome, errors_in_one_line, fail, run_name
from flows.prepare_tokens import prepare_tokens
from flows.train_language_model import train_language_model
from pipeline_config.environment import check_home
from pipeline_config.errors import SettingsError, StageError, TokenmillError
from pipeline_config.presets import load_settings, preset_names
from pipeline_config.settings import Settings
from tasks.markup import as_text
from tasks.run import open_run
from tasks.snapshots import new_snapshots
from tasks.store import open_store
from tasks.takedown.certificate import certificate_page, certify
from tasks.takedown.proof import remaining
from tasks.takedown.request import Request, holders, open_takedown, settings_without
from tasks.turns import later_run, reprocessing_turn

MOST_ROUNDS, MOST_CHARACTERS = 5, 500_000
Goal = Literal["corpus", "tokens", "model"]
GOALS: dict[Goal, Callable[[Settings], Outcome]] = {
    "corpus": build_corpus,
    "tokens": prepare_tokens,
    "model": train_language_model,
}


@flow(name="reprocess", flow_run_name=run_name("reprocess"))
def reprocess(settings: Settings, goal: Goal = "corpus", reason: str = "") -> dict[str, Any]:
    """New snapshots of the sources become part of the corpus; what is there already is not computed again.

    Args:
        goal: How far to go.
        reason: Why this was started; shown on the page.
    """
    if later := later_run():
        get_run_logger().info("the run %s is due, too, and does the work of both", later.name)
        return {"left_to": later.name}
    with reprocessing_turn(open_store()):
        news = new_snapshots(settings)
        if not news.snapshots:
            get_run_logger().info("no new snapshot since the run %s", news.since)
        else:
            GOALS[goal](news.settings)
    page = news.page(reason)
    create_markdown_artifact(page, key="reprocessing", description="What was new, and what became of it")
    return {"new_snapshots": news.snapshots, "corpus_version": news.version()}


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
    command = commands.add_parser("snapshots", help="take in new snapshots of the sources")
    command.set_defaults(action=_snapshots)
    command.add_argument("preset", help=f"one of {', '.join(preset_names())}, or a .yaml file")
    command.add_argument("overrides", nargs="*", metavar="section.field=value", help="settings to change")
    command.add_argument("--goal", choices=list(GOALS), default="corpus", help="how far to go")
    command = commands.add_parser("takedown", help="remove documents, prove it, and certify it")
    command.set_defaults(action=_takedown)
    command.add_argument("takedown_list", metavar="LIST", help="YAML file with reason, date and entries")
    command.add_argument("--run", default="latest", help="run or corpus (default: latest)")
    command.add_argument("--retrain", action="store_true", help="train the model again, too")
    chosen = vars(parser.parse_args(arguments))
    action = chosen.pop("action")
    errors_in_one_line()
    try:
        check_home()
        prefect_server.wait()
        action(**chosen)
    except SettingsError as error:
        sys.exit(fail(error, 2))
    except TokenmillError as error:
        sys.exit(fail(error, 1))


def _takedown(**chosen: Any) -> None:
    print(as_text(certificate_page(takedown(**chosen))))


def _snapshots(preset: str, overrides: list[str], goal: Goal) -> None:
    done = reprocess(load_settings(preset, overrides), goal)
    names = ", ".join(done["new_snapshots"]) or "none"
    print(f"new snapshots: {names}; corpus version {done['corpus_version']}")


if __name__ == "__main__":
    main()
