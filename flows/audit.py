"""Questions to the records: `python -m flows.audit {trace,why,compare,verify,what-if,flush} ...`.

Each is a Prefect flow with a form, a command and a Markdown artifact. A run is named by `latest`, by its id
or name, or by the key or digest of one of its outputs (a corpus, a checkpoint).
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from flows import prefect_server
from flows.command_line import errors_in_one_line, fail
from pipeline_config.environment import check_home
from pipeline_config.errors import AuditError, TokenmillError
from tasks.audit import questions
from tasks.markup import as_text
from tasks.steps.selection import Kind

Answer = dict[str, Any]


@flow(name="audit-trace", flow_run_name="trace {what}")
def trace(what: str, kind: Kind | None = None, run: str = "latest", most: int = 20) -> Answer:
    """The whole path of documents: record, fates, texts, duplicates, split, tokens, checkpoints.

    Args:
        what: A URL, a URL prefix ending in *, a domain, or a document id.
        kind: What `what` is, where its form does not say.
        run: latest, a run's id or name, or the key or digest of an output.
        most: Paths to show at most; all records are counted.
    """
    return _shown("trace", questions.trace(what, kind, run, most))


@flow(name="audit-why", flow_run_name="why {stage} {reason}")
def why(stage: str, reason: str, sample: int = 20, seed: int = 0, run: str = "latest") -> Answer:
    """What a reason removes, with excerpts, and the near misses that were kept.

    Args:
        stage: A stage with a ledger, such as quality_filtering.
        reason: One of its reasons, such as gopher_short_doc.
        sample: Documents to show of each side.
        seed: Another seed shows others.
        run: latest, a run's id or name, or the key or digest of an output.
    """
    return _shown("why", questions.why(stage, reason, sample, seed, run))


@flow(name="audit-compare", flow_run_name="compare {a} with {b}")
def compare(a: str, b: str = "latest") -> Answer:
    """Documents and tokens in two corpora, what is responsible, and what differs in settings and versions.

    Args:
        a: A run's id or name, or the key or digest of an output.
        b: The other one.
    """
    return _shown("compare", questions.compare(a, b))


@flow(name="audit-verify", flow_run_name="verify {run}")
def verify(run: str = "latest") -> Answer:
    """Every file against its manifest, all books, all inputs: a pass, or the exact file that is wrong.

    Args:
        run: latest, a run's id or name, or the key or digest of a corpus or checkpoint.
    """
    answer = _shown("verify", questions.verify(run))
    if not answer["passed"]:
        worst = answer["problems"][0]
        raise AuditError(
            f"{len(answer['problems'])} problems, the first one: {worst['file']}: {worst['problem']}"
        )
    return answer


@flow(name="audit-what-if", flow_run_name="what if {overrides}")
def what_if(overrides: list[str], sample: int = 1000, seed: int = 0, run: str = "latest") -> Answer:
    """Documents and tokens that another setting would win and lose, from a seeded sample.

    Args:
        overrides: section.field=value, such as quality_filtering.gopher_quality.min_doc_words=30.
        sample: Records of each source to compute again.
        seed: Another seed takes another sample.
        run: latest, a run's id or name, or the key or digest of an output.
    """
    return _shown("what-if", questions.what_if(overrides, sample, seed, run))


@flow(name="audit-flush")
def flush() -> Answer:
    """Sends the records that MLflow could not take when they were made."""
    answer = questions.flush()
    if answer["waiting"]:
        raise AuditError(f"{answer['waiting']} records still wait: {answer['problem']}")
    return answer


def _shown(name: str, found: tuple[Answer, str]) -> Answer:
    answer, page = found
    create_markdown_artifact(page[:MOST_CHARACTERS], key=f"audit-{name}", description=f"Answer of {name}")
    print(json.dumps(answer, indent=1, ensure_ascii=True, default=str) if _as_json else as_text(page))
    return answer


MOST_CHARACTERS = 500_000
_as_json = False


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    global _as_json
    chosen = vars(_parser().parse_args(arguments))
    question: Callable[..., Answer] = chosen.pop("question")
    _as_json = chosen.pop("json", False)
    errors_in_one_line()
    try:
        _check_text(chosen)
        check_home()
        prefect_server.wait()
        answer = question(**chosen)
    except TokenmillError as error:
        sys.exit(fail(error, 1))
    if question is flush:
        print(json.dumps(answer))


def _check_text(arguments: dict[str, Any]) -> None:
    """Refuses bytes of the command line that are no text: no record, and no server, can hold them."""
    for name, value in arguments.items():
        if _SURROGATE.search("".join(value) if isinstance(value, list) else str(value)):
            raise AuditError(f"{name}: {value!r} is not Unicode")


_SURROGATE = re.compile("[\ud800-\udfff]")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="QUESTION")

    def add(question: Any, name: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=question.description.partition("\n")[0])
        command.set_defaults(question=question)
        if question is not flush:
            command.add_argument("--json", action="store_true", help="print the answer as JSON")
        if question not in (flush, compare, verify):
            command.add_argument(
                "--run", default="latest", help="run, corpus or checkpoint (default: latest)"
            )
        return command

    command = add(trace, "trace")
    command.add_argument("what", help="URL, URL prefix ending in *, domain, or document id")
    command.add_argument("--kind", choices=questions.KINDS, help="what it is, where its form does not say")
    command.add_argument("--most", type=int, default=20, help="paths to show at most (default: 20)")
    command = add(why, "why")
    command.add_argument("stage")
    command.add_argument("reason")
    command.add_argument("--sample", type=int, default=20, help="documents of each side (default: 20)")
    command.add_argument("--seed", type=int, default=0)
    command = add(compare, "compare")
    command.add_argument("a", metavar="CORPUS_A")
    command.add_argument("b", metavar="CORPUS_B", nargs="?", default="latest")
    command = add(verify, "verify")
    command.add_argument("run", nargs="?", default="latest", metavar="CORPUS|CHECKPOINT")
    command = add(what_if, "what-if")
    command.add_argument("overrides", nargs="+", metavar="section.field=value")
    command.add_argument("--sample", type=int, default=1000, help="records of each source (default: 1000)")
    command.add_argument("--seed", type=int, default=0)
    add(flush, "flush")
    return parser


if __name__ == "__main__":
    main()
