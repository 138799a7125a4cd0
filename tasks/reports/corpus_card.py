"""The corpus card: a `README.md` in the Hugging Face dataset format."""

from typing import Any

import yaml

from tasks.markup import escaped, table, table_of

Row = dict[str, Any]
SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
)
LIMITATIONS = """\
- Language labels, quality rules and the removal of e-mail and IP addresses are automatic and make mistakes
  both ways; other personal data may remain.
- Near-duplicates are found with a probability that grows with their similarity; some remain.
- The texts keep the terms of their authors: the licences below are what each source states.
- A web crawl holds false, biased and offensive texts."""
TAKEDOWN = """\
1. Write a list: a YAML file with `reason`, `date`, `entries` (each a `url`, `url_prefix`, `domain` or `id`).
2. `python -m flows.reprocess takedown LIST --run {digest}` finds every output and checkpoint that holds such
   a document or a near-duplicate of it, makes the corpus again without them, proves that nothing is left, and
   writes a certificate.
3. Name the lists that the certificate names as `takedown` of the sources in the preset, for later runs."""


def corpus_card(statistics: Row, facts: Row, files: dict[str, list[str]]) -> str:
    """The card.

    Args:
        statistics: of `corpus_statistics`.
        facts: `name`, `digest`, `languages`, `settings` and `versions` of the corpus.
        files: for each split its files, relative to the card.
    """
    totals = statistics["totals"]
    parts = [
        f"---\n{yaml.safe_dump(_header(statistics, facts, files), sort_keys=False, allow_unicode=True)}---",
        f"# Corpus {escaped(facts['name'])}",
        f"{totals['documents']:,} documents, {totals['text_bytes']:,} bytes of text, from "
        f"{statistics['read']:,} records read. Digest `{facts['digest']}`. "
        "Made with Tokenmill; `report.html` shows it in pictures.",
        _LOADING.format(splits=", ".join(f"`{name}`" for name in files)),
        "## Sources",
        table_of(statistics["sources"], *_SOURCE_COLUMNS),
        "`corpus.json` names every file of every source with its digest.",
        "## Takedowns",
        table_of([taken | {"source": s["name"]} for s in statistics["sources"] for taken in s["takedowns"]]),
        "## Splits",
        table_of(statistics["splits"], "split", "source", "documents", "text_bytes"),
        "## Removal statistics",
        "Read = kept + removed + failed, in every stage.",
        table(["stage", "source", "read", "kept", "removed", "failed"], map(_counts, statistics["stages"])),
        table_of(statistics["reasons"], "stage", "fate", "reason", "records"),
        "## Recipe",
        table(["setting", "value"], facts["settings"].items()),
        table(["decides the output", "version"], facts["versions"].items()),
        "## Known limitations",
        LIMITATIONS,
        "## How to take something down",
        TAKEDOWN.format(digest=facts["digest"][:12]),
    ]
    return "\n\n".join(parts) + "\n"


_SOURCE_COLUMNS = (
    "name",
    "kind",
    "dump",
    "dataset",
    "revision",
    "licence",
    "weight",
    "documents",
    "text_bytes",
)
_LOADING = """\
```python
from datasets import load_dataset

documents = load_dataset("path/of/this/folder", streaming=True)
```

Splits: {splits}. Fields: those of FineWeb (`text`, `id`, `dump`, `url`, `date`, `file_path`, `language`,
`language_score`, `token_count`) and `warc_offset`, `warc_length`, `payload_digest`, `extractor`, `source`."""


def _header(statistics: Row, facts: Row, files: dict[str, list[str]]) -> Row:
    count = statistics["totals"]["documents"]
    licences = sorted({source["licence"] for source in statistics["sources"]})
    data_files = [{"split": split, "path": names} for split, names in files.items()]
    return {
        "pretty_name": facts["name"],
        "license": "other",
        "license_name": ", ".join(licences),
        "language": facts["languages"],
        "task_categories": ["text-generation"],
        "size_categories": [next((name for size, name in SIZES if count < size), "n>10M")],
        "configs": [{"config_name": "default", "data_files": data_files}],
    }


def _counts(stage: Row) -> list[Any]:
    lost = (sum(stage["removed"].values()), sum(stage["failed"].values()))
    return [stage["stage"], stage["source"], stage["read"], stage["kept"], *lost]
