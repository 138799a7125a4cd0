"""The GPT: what it is made of, and what it may see."""

import math

import pytest
import torch

from model.architecture import GPT, MLP, CausalSelfAttention, TransformerBlock
from pipeline_config.settings import ModelSettings

SETTINGS = ModelSettings(layers=2, heads=2, width=32, max_context=16)
VOCABULARY = 300


def make(settings: ModelSettings = SETTINGS, vocabulary: int = VOCABULARY) -> GPT:
    torch.manual_seed(0)
    return GPT(settings, vocabulary)


def some_ids(rows: int = 4, tokens: int = 16, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(vocabulary, (rows, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("settings", "vocabulary"),
    [
        pytest.param(SETTINGS, VOCABULARY, id="tiny"),
        pytest.param(ModelSettings(layers=4, heads=4, width=128, max_context=32), 4096, id="default width"),
        pytest.param(ModelSettings(layers=8, heads=1, width=64, max_context=16), 257, id="deep"),
    ],
)
def test_the_first_loss_is_that_of_a_guess(settings: ModelSettings, vocabulary: int) -> None:
    ids = some_ids(rows=8, tokens=settings.max_context, vocabulary=vocabulary)
    _, loss = make(settings, vocabulary)(ids[:, :-1], ids[:, 1:])
    assert loss.item() == pytest.approx(math.log(vocabulary), abs=0.1)


@pytest.mark.parametrize("changed", [0, 1, 7, 15])
def test_no_position_sees_a_later_token(changed: int) -> None:
    model, ids = make().eval(), some_ids()
    others = ids.clone()
    others[:, changed] = (others[:, changed] + 1) % VOCABULARY
    before, after = model(ids)[0], model(others)[0]
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert all(not torch.equal(before[:, t], after[:, t]) for t in range(changed, 16))


def test_rows_of_a_batch_do_not_see_each_other() -> None:
    model, ids = make().eval(), some_ids()
    others = ids.clone()
    others[0] = (others[0] + 1) % VOCABULARY
    assert torch.equal(model(ids)[0][1:], model(others)[0][1:])


def test_the_order_of_the_tokens_matters() -> None:
    model, ids = make().eval(), some_ids()
    swapped = ids[:, [1, 0, *range(2, 16)]]
    assert not torch.allclose(model(ids)[0][:, -1], model(swapped)[0][:, -1])


def test_the_loss_is_the_mean_cross_entropy_in_nats() -> None:
    model, ids = make(), some_ids()
    logits, loss = model(ids[:, :-1], ids[:, 1:])
    chosen = logits.log_softmax(-1).gather(2, ids[:, 1:, None])
    assert loss.item() == pytest.approx(-chosen.mean().item(), rel=1e-5)
    assert model(ids)[1] is None


@pytest.mark.parametrize(
    "tokens", [pytest.param(17, id="one too many"), pytest.param(40, id="many too many")]
)
def test_a_text_longer_than_the_context_is_refused(tokens: int) -> None:
    with pytest.raises(ValueError, match=f"{tokens} tokens do not fit into a context of 16"):
        make()(some_ids(tokens=tokens))


def test_the_vocabulary_projection_is_the_token_embedding() -> None:
    model = make()
    assert model.vocabulary_projection.weight is model.token_embedding.weight
    assert "vocabulary_projection.weight" not in dict(model.named_parameters())
    assert model.to(torch.float64).vocabulary_projection.weight is model.token_embedding.weight


def test_the_parts_have_the_names_of_the_design() -> None:
    model = make()
    names = {name.split(".")[0] for name in model.state_dict()}
    assert names == {
        *("token_embedding", "position_embedding", "blocks", "final_norm", "vocabulary_projection")
    }
    assert [type(block) for block in model.blocks] == [TransformerBlock, TransformerBlock]
    kinds = {type(module) for module in model.blocks[0].children()}
    assert {CausalSelfAttention, MLP} <= kinds


def test_the_number_of_parameters_follows_from_the_shape() -> None:
    width, layers = SETTINGS.width, SETTINGS.layers
    matrices = layers * 12 * width**2 + (VOCABULARY + SETTINGS.max_context) * width
    vectors = layers * (4 * width + 9 * width) + 2 * width  # norms; biases 3 + 1 + 4 + 1; final norm
    assert sum(parameter.numel() for parameter in make().parameters()) == matrices + vectors


def test_the_same_seed_gives_the_same_weights() -> None:
    first, second = make().state_dict(), make().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_every_parameter_gets_a_gradient() -> None:
    model, ids = make(), some_ids(tokens=16)
    model(ids, ids)[1].backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
