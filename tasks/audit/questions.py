"""The questions that can be asked, by name: each gives the answer as plain data, and as a page."""

from typing import Any

from pipeline_config.errors import AuditError
from tasks.audit import comparison, pages, removal_review, verification
from tasks.audit import trace as tracing
from tasks.audit.ledger import Ledger
from tasks.lineage import RunRecord, find_run
from tasks.sender import spool_root
from tasks.spool import spools
from tasks.steps.selection import KINDS, Kind, Selector
from tasks.store import Store, open_store

__all__ = ["KINDS", "compare", "flush", "trace", "verify", "what_if", "why"]

Answer = dict[str, Any]


def trace(what: str, kind: Kind | None, run: str, most: int) -> tuple[Answer, str]:
    """The paths of the documents that a URL, prefix, domain or id means."""
    _check_at_least_one("most", most)
    selector = Selector(kind, what) if kind else Selector.of(what)
    answer = tracing.trace(_ledger(run), selector, most)
    return answer, pages.trace_page(answer)


def why(stage: str, reason: str, sample: int, seed: int, run: str) -> tuple[Answer, str]:
    """What a reason removed, and near misses."""
    _check_at_least_one("sample", sample)
    answer = removal_review.why(_ledger(run), stage, reason, sample, seed)
    return answer, pages.why_page(answer)


def compare(one: str, other: str) -> tuple[Answer, str]:
    """The differences of two corpora."""
    answer = comparison.compare(_ledger(one), _ledger(other))
    return answer, pages.compare_page(answer)


def verify(reference: str) -> tuple[Answer, str]:
    """Whether everything of a run, or of an output of it, is as it was written."""
    run = find_run(reference)
    answer = verification.verify(run, _store(), _node(run, reference))
    return answer, pages.verify_page(answer)


def what_if(overrides: list[str], sample: int, seed: int, run: str) -> tuple[Answer, str]:
    """What other settings would win and lose."""
    from tasks.audit.what_if import what_if

    _check_at_least_one("sample", sample)
    answer = what_if(_ledger(run), overrides, sample, seed)
    return answer, pages.what_if_page(answer)


def flush() -> Answer:
    """Sends what waits for MLflow: how much was `sent`, still is `waiting`, and was `refused`."""
    from tasks.provenance import send_all

    sent, problem = 0, None
    try:
        for _, count in send_all(spool_root(), _store()):
            sent += count
    except Exception as error:
        problem = str(error)
    left = spools(spool_root())
    waiting = sum(spool.waiting() for spool in left)
    if waiting and problem is None:
        problem = "a run that is going on, or is just ending, sends them itself"
    return {
        "sent": sent,
        "waiting": waiting,
        "refused": [operation for spool in left for operation in spool.refused()],
        "problem": problem,
    }


def _check_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise AuditError(f"{name}: {value} is refused: it must be at least 1")


def _store() -> Store:
    return open_store()


def _ledger(reference: str) -> Ledger:
    return Ledger(find_run(reference), _store())


def _node(run: RunRecord, reference: str) -> Any:
    short = reference.strip().rstrip("/").rpartition("/")[2]
    if short in ("latest", run.id, run.name):
        return None
    return next(
        (n for n in reversed(run.nodes) if n.key.startswith(short) or n.digest.startswith(short)), None
    )
