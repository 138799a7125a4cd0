"""The model card: a `README.md` in the Hugging Face model format."""

from typing import Any

import yaml

from tasks.markup import block, escaped, table

Row = dict[str, Any]
TOKENS_PER_PARAMETER = 20  # Source: Hoffmann et al. 2022, arXiv:2203.15556, table 3


def model_card(facts: Row, losses: list[Row], sample: Row | None) -> str:
    """The card.

    Args:
        facts: `name`, `preset`, `code`, `languages`, `training` and `model` settings, `parameters`, `tokens`,
            `vocabulary_size`, the digests `checkpoint`, `data`, `tokenizer` and `corpus`, and `versions`.
        losses: a dictionary for each step.
        sample: the record of a generated text.
    """
    header = yaml.safe_dump(
        {"language": facts["languages"], "library_name": "tokenmill", "pipeline_tag": "text-generation"},
        sort_keys=False,
    )
    parts = [
        f"---\n{header}---",
        f"# Model {escaped(facts['name'])}",
        f"A GPT with {facts['parameters']:,} parameters, trained on {facts['tokens']:,} tokens.",
        "## Architecture",
        table(["setting", "value"], [*facts["model"].items(), ("vocabulary", facts["vocabulary_size"])]),
        "## Budget",
        table(["", ""], _budget(facts)),
        "## Data",
        table(
            ["", "digest"], [[name, facts[name]] for name in ("data", "tokenizer", "corpus", "checkpoint")]
        ),
        f"The corpus report is `report.html` in the store, in `corpus_publication/{facts['corpus_key']}`, "
        "and an artifact of its run in MLflow.",
        "## Losses",
        table(["step", "training", "validation"], _losses(losses)),
    ]
    if sample is not None:
        sampler = {n: sample[n] for n in ("seed", "temperature", "top_k", "max_tokens") if n in sample}
        parts += [
            "## Sample",
            f"Prompt {escaped(repr(sample['prompt']))}; "
            f"{escaped(', '.join(f'{name} {value}' for name, value in sampler.items()))}.",
            block(sample["text"]),
        ]
    parts += [
        "## How to reproduce",
        f"With the code at `{facts['code']}`, the versions below, and `preset.yaml` of this folder, in which "
        "the `base` of each source has to say where its files lie (`corpus.json` of the corpus names them):",
        "    python -m flows.train_language_model preset.yaml",
        table(["decides the output", "version"], facts["versions"].items()),
        "## Limitations",
        "Trained on automatically filtered texts, it repeats them, true or not; see the corpus card.",
    ]
    return "\n\n".join(parts) + "\n"


def _budget(facts: Row) -> list[list[Any]]:
    training, parameters, tokens = facts["training"], facts["parameters"], facts["tokens"]
    per_step = training["rows_per_step"] * facts["model"]["max_context"]
    return [
        ["tokens per update", per_step],
        ["updates", training["steps"]],
        ["tokens seen", tokens],
        ["tokens per parameter", f"{tokens / parameters:.3g} (a rule of thumb says {TOKENS_PER_PARAMETER})"],
        ["floating-point operations, 6 x parameters x tokens", f"{6 * parameters * tokens:.3g}"],
        *([name, training[name]] for name in ("learning_rate", "warmup_steps", "weight_decay", "seed")),
    ]


def _losses(losses: list[Row]) -> list[list[Any]]:
    """The first and last step, and those with a validation."""
    chosen = [
        point for index, point in enumerate(losses) if "val_loss" in point or index in (0, len(losses) - 1)
    ]
    return [
        [int(p["step"]), f"{p['train_loss']:.4f}", f"{p['val_loss']:.4f}" if "val_loss" in p else ""]
        for p in chosen
    ]
