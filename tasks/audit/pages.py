"""The answers of audits as Markdown, for Prefect's artifacts and the terminal. Crawled texts stay text."""

from typing import Any

from tasks.markup import block, escaped, table, table_of

Answer = dict[str, Any]
MOST_LISTED = 50


def trace_page(answer: Answer) -> str:
    """What `trace` found."""
    selected = answer["selected"]
    head = [
        f"# Trace of {selected['kind']} {escaped(selected['value'])}",
        f"Run `{answer['run']}`: {answer['records']:,} records.",
        table_of(answer["fates"], "stage", "fate", "reason", "records"),
    ]
    return "\n\n".join([*head, *(_document(document) for document in answer["documents"])])


def _document(document: Answer) -> str:
    record, fate = document["record"], document["fate"]
    parts = [
        f"## {escaped(document['url'] or document['id'])}",
        table(
            ["", ""],
            [
                ["id", document["id"]],
                ["source", document["source"]],
                [
                    "record",
                    f"{record['file_path']} at {record['warc_offset']}, {record['warc_length']} bytes",
                ],
                ["digest", f"{record['payload_digest']}{_agreement(record)}"],
                [
                    "fate",
                    " ".join(str(fate[n]) for n in ("fate", "stage", "reason", "value", "split") if fate[n]),
                ],
                ["tokens", ", ".join(map(_range, document["tokens"])) or "none"],
            ],
        ),
        table_of(document["steps"], "stage", "source", "fate", "reason", "value", "key"),
        *(_change(step) for step in document["steps"] if step["change"]),
    ]
    if document["cluster"]:
        parts += [
            "### Duplicates",
            table_of(document["cluster"], "kept", "similarity", "url", "id", "source"),
        ]
    if document["checkpoints"]:
        parts += ["### Checkpoints", table(_CHECKPOINT, map(_checkpoint, document["checkpoints"]))]
    return "\n\n".join(parts)


_CHECKPOINT = ["checkpoint", "steps that saw it", "of", "rows", "first steps", "marks"]


def _checkpoint(found: Answer) -> list[Any]:
    marks = "; ".join(mark["what"] for mark in found["marks"])
    steps = ", ".join(map(str, found["first_steps"])) + (" (validation)" if found["validation"] else "")
    return [found["key"], found["steps_that_saw_it"], found["steps"], found["rows"], steps, marks]


def _agreement(record: Answer) -> str:
    if record.get("readable") is False:
        return f" (the source cannot be read now: {record['problem']})"
    agrees = record.get("digest_agrees")
    return (
        "" if agrees is None else " (the source agrees)" if agrees else " (THE SOURCE HOLDS SOMETHING ELSE)"
    )


def _range(part: Answer) -> str:
    return f"{part['shard']} {part['start_token']} to {part['end_token']}"


def _change(step: Answer) -> str:
    before, after = step["change"]["characters"]
    shown = step["change"].get("after", "\n".join(step["change"].get("diff", ())))
    title = f"### Text after {step['stage']}: {before if before is not None else 'no'} to {after} characters"
    return f"{title}\n\n{block(shown)}"


def why_page(answer: Answer) -> str:
    """What `why` found."""
    return "\n\n".join(
        [
            f"# Why {answer['stage']} gave {escaped(answer['reason'])}",
            f"Run `{answer['run']}`: {answer['records']:,} records.",
            "## Removed: a sample",
            table_of(answer["sample"], "value", "url", "id", "source", "excerpt"),
            f"## Kept: near misses, of {answer['compared']:,} kept documents looked at",
            table_of(answer["near_misses"], "value", "url", "id", "source", "excerpt"),
            "## All reasons of the stage",
            table_of(answer["reasons_of_the_stage"], "fate", "reason", "records"),
        ]
    )


def compare_page(answer: Answer) -> str:
    """What `compare` found."""
    return "\n\n".join(
        [
            "# Two corpora",
            table_of([{"": name, **answer[name]} for name in ("a", "b")]),
            "## Documents and tokens",
            table(["", "number"], answer["documents"].items()),
            "## Only in a: where b lost them",
            table_of(answer["only_in_a"]),
            "## Only in b: where a lost them",
            table_of(answer["only_in_b"]),
            "## Settings that differ",
            table_of(answer["settings"]),
            "## Versions that differ",
            table_of(answer["versions"]),
        ]
    )


def verify_page(answer: Answer) -> str:
    """What `verify` found."""
    verdict = "passed" if answer["passed"] else f"FAILED: {len(answer['problems'])} problems"
    return "\n\n".join(
        [
            f"# Verification {verdict}",
            f"Run `{answer['run']}`: {answer['outputs']} outputs, {answer['files']:,} files, "
            f"{answer['bytes']:,} bytes.",
            table_of(answer["problems"][:MOST_LISTED], "file", "problem"),
        ]
    )


def what_if_page(answer: Answer) -> str:
    """What `what-if` found."""
    parts = [
        f"# What if {escaped(', '.join(answer['overrides']))}",
        f"Run `{answer['run']}`, from `{answer['stage']}` on, seed {answer['seed']}.",
        *map(escaped, answer["notes"]),
    ]
    for found in answer["sources"]:
        parts.append(f"## {escaped(found['source'])}: {found['sampled']:,} of {found['records']:,} records")
        names = ("won", "lost", "moved_to_the_other_split", "texts_changed")
        rows = [
            [name, *(found[name][column] for column in _ESTIMATE), found.get(f"{name}_tokens")]
            for name in names
        ]
        parts.append(table(["documents", "in sample", "estimate", "from", "to (95 %)", "tokens"], rows))
        examples = [
            {"change": name, **example} for name in ("won", "lost") for example in found[f"{name}_examples"]
        ]
        parts.append(table_of(examples, "change", "before", "after", "url", "id"))
    return "\n\n".join(parts)


_ESTIMATE = ("in_sample", "estimate", "from", "to")
