"""The model card: a header that tools read, numbers that follow from the settings, a sample that is text."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tasks.reports.model_card import model_card

HEADER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
LOSSES = [
    {"step": n, "train_loss": 6.0 - n / 10} | ({"val_loss": 6.5 - n / 10} if n % 5 == 4 else {})
    for n in range(12)
]


def facts_with(text: str) -> dict[str, Any]:
    """Facts of a model in which every text from outside is `text`."""
    return {
        "name": text, "preset": "tiny", "code": "0" * 40, "languages": ["en", text],
        "model": {"layers": 1, "heads": 2, "width": 32, "max_context": 32},
        "training": {
            "steps": 12, "rows_per_step": 4, "seed": 7, "learning_rate": 0.01, "warmup_steps": 2,
            "weight_decay": 0.1,
        },
        "parameters": 27_264, "tokens": 1536, "vocabulary_size": 400,
        "checkpoint": "a" * 64, "data": "b" * 64, "tokenizer": "c" * 64, "corpus": "d" * 64,
        "corpus_key": "e" * 64, "versions": {"training.torch": text, text: "1"},
    }  # fmt: skip


def sample_with(text: str) -> dict[str, Any]:
    """A generated text."""
    return {"prompt": text, "text": text, "seed": 0, "temperature": 0.8, "top_k": 50, "max_tokens": 8}


def card_of(facts: dict[str, Any], losses: Any = LOSSES, sample: Any = None) -> tuple[dict[str, Any], str]:
    """The header and the rest of the card, as they are in its file."""
    card = model_card(facts, losses, sample).encode("utf-8", "replace").decode()
    found = HEADER.match(card)
    return yaml.safe_load(found.group(1)), card[found.end() :]


def cells(body: str, heading: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    table = body.split(f"## {heading}\n\n")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def headings(body: str) -> list[str]:
    return [line for line in body.split("\n") if line.startswith("## ")]


def test_the_header_parses_whatever_the_settings_hold(hostile: SimpleNamespace):
    header, _ = card_of(facts_with(hostile.text))
    assert header == {
        "language": ["en", hostile.text],
        "library_name": "tokenmill",
        "pipeline_tag": "text-generation",
    }


def test_a_hostile_text_makes_no_markup(hostile: SimpleNamespace):
    _, body = card_of(facts_with(hostile.text), sample=sample_with(hostile.text))
    _, expected = card_of(facts_with("word"), sample=sample_with("word"))
    outside = "\n".join(line for line in body.split("\n") if not line.startswith("    "))
    assert "<" not in outside
    assert "](" not in outside
    assert headings(body) == headings(expected)
    assert [line.count("|") for line in outside.split("\n")] == [
        line.count("|") for line in expected.split("\n") if not line.startswith("    ")
    ]


def test_a_generated_text_stays_in_its_block(hostile: SimpleNamespace):
    _, body = card_of(facts_with("word"), sample=sample_with(hostile.text))
    block = body.split("max&#95;tokens 8.\n\n")[1].split("\n\n## How to reproduce")[0]
    assert all(line.startswith("    ") for line in block.split("\n"))
    assert len(block) < 5000


def test_the_budget_follows_from_the_settings():
    _, body = card_of(facts_with("word"))
    rows = dict(cells(body, "Budget"))
    assert rows["tokens per update"] == f"{4 * 32:,}"
    assert rows["tokens seen"] == f"{12 * 4 * 32:,}"
    assert rows["tokens per parameter"].startswith(f"{1536 / 27_264:.3g} ")
    assert rows["floating-point operations, 6 x parameters x tokens"] == f"{6 * 27_264 * 1536:.3g}"


@pytest.mark.parametrize(
    ("losses", "steps"),
    [
        pytest.param(LOSSES, [0, 4, 9, 11], id="first_last_and_validated"),
        pytest.param(LOSSES[:1], [0], id="one_step"),
        pytest.param(LOSSES[:5], [0, 4], id="validated_at_the_end"),
        pytest.param([], [], id="none"),
    ],
)
def test_losses_are_those_of_the_first_and_last_step_and_of_each_validation(losses: Any, steps: list[int]):
    _, body = card_of(facts_with("word"), losses)
    assert cells(body, "Losses") == [
        [str(n), f"{6.0 - n / 10:.4f}", f"{6.5 - n / 10:.4f}" if n % 5 == 4 else ""] for n in steps
    ]


def test_the_card_names_digests_and_the_command():
    _, body = card_of(facts_with("word"))
    names = {"data": "b", "tokenizer": "c", "corpus": "d", "checkpoint": "a"}
    assert cells(body, "Data") == [[name, letter * 64] for name, letter in names.items()]
    assert "    python -m flows.train_language_model preset.yaml\n" in body
    assert "## Sample" not in body
