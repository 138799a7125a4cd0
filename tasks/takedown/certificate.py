"""The marks on what a takedown supersedes, and its certificate."""

from typing import Any

from tasks.audit.marks import add_mark
from tasks.lineage import now
from tasks.markup import table, table_of
from tasks.run import Run
from tasks.store import write_json
from tasks.takedown.proof import SNIPPET_CHARACTERS
from tasks.takedown.request import ASKED_FOR, CORPUS_STAGES, MODEL_STAGES, Request

Row = dict[str, Any]


def certify(request: Request, run: Run, held: list[Row], rounds: int) -> Row:
    """Marks what is superseded, and writes the certificate to the data folder and to MLflow."""
    old, new = request.ledger.run, run.record
    certificate = {
        "asked": request.asked.facts | {"list": request.uri, "entries": _entries(request)},
        "found": {"records": request.records, "outputs": held},
        "removed": {"records": len(request.records), "rounds": rounds},
        "lists": {source: str(path) for source, path in request.lists.items()},
        "proof": _proof(run),
        "before": _digests(old),
        "after": _digests(new),
        "recomputed": [f"{r.output.stage} {r.output.label}" for r in run.results if not r.cached],
        "cached": [f"{r.output.stage} {r.output.label}" for r in run.results if r.cached],
        "run_before": old.id,
        "run_after": new.id,
        "finished": now(),
    }
    _mark(request, run, held)
    page = certificate_page(certificate)
    write_json(request.folder / "certificate.json", certificate)
    (request.folder / "certificate.md").write_text(page, "utf-8", errors="replace")
    names = ("certificate.json", "certificate.md")
    run.records.log_files({f"takedown/{name}": request.folder / name for name in names})
    run.records.tag({"takedown": request.asked.digest, "supersedes": old.id})
    return certificate


def _entries(request: Request) -> list[Row]:
    """Each entry of the list with the number of records that it means in the old run."""
    asked = [row for row in request.affected if row["why"] == ASKED_FOR]
    return [
        {s.kind: s.value, "records": sum(s.matches(row["url"], row["id"]) for row in asked)}
        for s in request.asked.selectors
    ]


def _proof(run: Run) -> list[str]:
    """What was checked of the new run."""
    checked = [
        "no affected id or URL is among what any stage of the new run kept, and no text of one in its ledger",
        "no document of the new corpus has a text that an affected one had in any stage, or shares a band of "
        "its MinHash signature with one",
        f"no beginning, middle or end ({SNIPPET_CHARACTERS} characters each) of such a text is in the card, "
        "the report or a sample, unless other documents say the same",
    ]
    if run.record.last("packing") is not None:
        checked.append("no affected token range is in the index, which covers every token of the shards")
    return checked


def _digests(run: Any) -> Row:
    last = {node.stage: node for node in run.nodes if node.stage in (*CORPUS_STAGES, *MODEL_STAGES)}
    return {stage: {"key": node.key, "digest": node.digest} for stage, node in last.items()}


def _mark(request: Request, run: Run, held: list[Row]) -> None:
    corpus = run.record.last("document_split")
    current = {node.digest for node in run.record.nodes}
    by = corpus.digest if corpus else ""
    first = {(row["stage"], row["key"]): row for row in reversed(held)}
    for row in first.values():
        if row["digest"] in current:  # byte for byte what the new run has
            continue
        what = f"superseded: {row['what']}" if row["stage"] in CORPUS_STAGES else row["what"]
        if row["stage"] in (*CORPUS_STAGES, *MODEL_STAGES):
            mark = {
                "what": what,
                "takedown": request.asked.digest,
                "superseded_by": by,
                "date": request.asked.date,
            }
            add_mark(request.ledger.store, row["stage"], row["key"], mark)
            tags = {"superseded_by": by[:64], "takedown": request.asked.digest}
            run.records.mark(row["digest"], tags | {"warning": what})


def certificate_page(certificate: Row) -> str:
    """The certificate as Markdown."""
    asked = certificate["asked"]
    stages = sorted(certificate["before"].keys() | certificate["after"].keys())
    digests = [
        [s, *(certificate[w].get(s, {}).get("digest", "") for w in ("before", "after"))] for s in stages
    ]
    return (
        "\n\n".join(
            [
                "# Takedown certificate",
                table(
                    ["asked", ""], [[name, asked[name]] for name in ("list", "takedown", "date", "reason")]
                ),
                table(
                    ["entry", "value", "records"],
                    [[*next(iter(entry.items())), entry["records"]] for entry in asked["entries"]],
                ),
                f"## Found: {len(certificate['found']['records'])} records",
                table_of(certificate["found"]["records"], "why", "source", "url", "id"),
                "## Outputs that held them, or were made from such",
                table_of(certificate["found"]["outputs"], "stage", "documents", "what", "key"),
                "## Digests",
                table(["stage", "before", "after"], digests),
                "## Computed again",
                table(["stage"], [[name] for name in certificate["recomputed"]]),
                "## Proved of the new corpus",
                "\n".join(f"- {line}" for line in certificate["proof"]),
                f"Run before: `{certificate['run_before']}`, after: `{certificate['run_after']}`, "
                f"finished {certificate['finished']}.",
                "## For later runs",
                "They leave these documents out only if the sources of their preset name these lists as "
                "`takedown`. Keep the lists: they hold the ids of the near-duplicates, too.",
                table(["source", "takedown"], certificate["lists"].items()),
            ]
        )
        + "\n"
    )
