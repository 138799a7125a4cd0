"""Generation: which token comes next, and that nothing else changes."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from model import generate as module
from model.architecture import GPT
from model.checkpoint import export
from model.generate import generate, main, next_token
from pipeline_config.settings import ModelSettings, TextGeneration

SETTINGS = ModelSettings(layers=1, heads=2, width=32, max_context=8)
PROMPT = [5, 6, 7]


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    model = GPT(SETTINGS, 300)
    with torch.no_grad():
        model.token_embedding.weight.mul_(10)  # sharper than a fresh model
    return model.eval()


def settings(**changed) -> TextGeneration:
    return TextGeneration(**({"max_tokens": 12, "temperature": 1.0, "top_k": 0} | changed))


def test_the_text_follows_from_the_seed(model: GPT) -> None:
    first = generate(model, PROMPT, settings(seed=1))
    torch.manual_seed(99)  # the global generator has no say
    assert generate(model, PROMPT, settings(seed=1)) == first
    assert generate(model, PROMPT, settings(seed=2)) != first


def test_the_prompt_is_kept_and_as_many_tokens_follow_as_asked(model: GPT) -> None:
    ids = generate(model, PROMPT, settings(max_tokens=4))
    assert ids[:3] == PROMPT == [5, 6, 7]
    assert len(ids) == 7


def test_temperature_zero_takes_the_most_probable_token(model: GPT) -> None:
    ids = generate(model, PROMPT, settings(temperature=0))
    for position in range(3, len(ids)):
        context = torch.tensor([ids[max(0, position - 8) : position]])
        assert ids[position] == int(model(context)[0][0, -1].argmax())
    assert generate(model, PROMPT, settings(temperature=0, seed=5)) == ids


def drawn(logits: torch.Tensor, count: int = 400, **changed) -> list[int]:
    sampler = torch.Generator().manual_seed(0)
    return [next_token(logits, settings(**changed), sampler) for _ in range(count)]


@pytest.mark.parametrize(
    ("top_k", "possible"),
    [
        pytest.param(1, {3}, id="one"),
        pytest.param(2, {3, 1}, id="two"),
        pytest.param(0, {0, 1, 2, 3}, id="all"),
        pytest.param(4, {0, 1, 2, 3}, id="as many as there are"),
        pytest.param(50, {0, 1, 2, 3}, id="more than there are"),
    ],
)
def test_only_the_top_k_tokens_are_drawn(top_k: int, possible: set[int]) -> None:
    assert set(drawn(torch.tensor([0.1, 0.3, 0.2, 0.4]), top_k=top_k)) == possible


def test_tokens_are_drawn_as_often_as_they_are_probable() -> None:
    ids = drawn(torch.tensor([0.7, 0.2, 0.1]).log(), count=3000)
    assert [ids.count(token) / 3000 for token in range(3)] == pytest.approx([0.7, 0.2, 0.1], abs=0.04)


def test_a_lower_temperature_is_sharper() -> None:
    logits = torch.tensor([0.6, 0.4]).log()
    sharp, plain, flat = (drawn(logits, 1000, temperature=t).count(0) for t in (0.2, 1.0, 5.0))
    assert sharp > plain > flat > 450


def test_generation_changes_no_parameter(model: GPT) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generate(model, PROMPT, settings())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_text_goes_on_beyond_the_context_from_its_last_tokens(model: GPT) -> None:
    long = list(range(20))
    ids = generate(model, long, settings(temperature=0))
    assert ids[:20] == long
    assert ids[20:] == generate(model, long[-8:], settings(temperature=0))[8:]
    assert len(ids) == 32


def test_the_end_token_ends_the_text_and_is_not_in_it(model: GPT) -> None:
    ids = generate(model, PROMPT, settings(temperature=0))
    end = ids[5]
    assert generate(model, PROMPT, settings(temperature=0), end) == ids[: ids.index(end, 3)]


@pytest.fixture
def checkpoint(tmp_path: Path, model: GPT) -> Path:
    """An exported model with a tokenizer of single characters."""
    vocabulary = {character: number for number, character in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    export(tmp_path / "checkpoint", model, tokenizer.to_str().encode(), {"tokenizer_digest": "abc"})
    return tmp_path / "checkpoint"


def generated(checkpoint: Path, **changed) -> dict:
    output = checkpoint.parent / "generation.json"
    config = {
        "checkpoint": str(checkpoint),
        "output": str(output),
        "text_generation": settings(**changed).model_dump(),
    }
    (checkpoint.parent / "config.json").write_text(json.dumps(config))
    assert main(str(checkpoint.parent / "config.json")) == 0
    return json.loads(output.read_text("utf-8"))


def test_the_record_holds_all_that_the_text_follows_from(checkpoint: Path) -> None:
    record = generated(checkpoint, prompt="The", seed=3)
    assert TextGeneration(**{name: record[name] for name in TextGeneration.model_fields}) == settings(
        prompt="The", seed=3
    )
    assert (record["prompt_tokens"], record["tokenizer_digest"]) == (3, "abc")
    assert record["text"].startswith("The")
    assert len(record["ids"]) <= 15
    assert generated(checkpoint, prompt="The", seed=3) == record


def test_an_empty_prompt_starts_a_document(checkpoint: Path) -> None:
    record = generated(checkpoint, prompt="")
    assert (record["prompt_tokens"], record["ids"][0]) == (1, 256)
    assert "<|endoftext|>" not in record["text"]


def test_text_is_generated_in_evaluation_mode(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[bool] = []

    def watch(model: GPT, ids: list[int], *_) -> list[int]:
        modes.append(model.training)
        return ids

    monkeypatch.setattr(module, "generate", watch)
    generated(checkpoint)
    assert modes == [False]
