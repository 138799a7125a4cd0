"""Checkpoints: what is written is what is read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from model.architecture import GPT
from model.checkpoint import export, load, load_progress, save_progress
from model.train import make_optimizer
from pipeline_config.settings import ModelSettings, Training

SETTINGS = ModelSettings(layers=1, heads=2, width=32, max_context=16)
IDS = torch.arange(48).view(3, 16)
FACTS = {"tokens_digest": "t", "tokenizer_digest": "k"}


def make(seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(SETTINGS, 300)


def train(model: GPT, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(IDS, IDS + 1)[1].backward()
        optimizer.step()


def test_a_loaded_checkpoint_gives_the_same_logits(tmp_path: Path) -> None:
    model = make().eval()
    export(tmp_path, model, b"tokenizer", FACTS)
    loaded, config = load(tmp_path)
    assert torch.equal(loaded(IDS)[0], model(IDS)[0])
    assert config == {"model": SETTINGS.model_dump(), "vocabulary_size": 300, **FACTS}
    assert (tmp_path / "tokenizer.json").read_bytes() == b"tokenizer"


def test_a_loaded_model_is_ready_for_inference_and_still_tied(tmp_path: Path) -> None:
    export(tmp_path, make().train(), b"", FACTS)
    loaded, _ = load(tmp_path)
    assert not any(module.training for module in loaded.modules())
    assert loaded.vocabulary_projection.weight is loaded.token_embedding.weight


def test_two_exports_of_one_model_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        export(tmp_path / name, make(), b"tokenizer", FACTS)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["config.json", "model.safetensors", "tokenizer.json"]
    assert all((tmp_path / "one" / f).read_bytes() == (tmp_path / "two" / f).read_bytes() for f in files)


def test_other_weights_are_other_bytes(tmp_path: Path) -> None:
    for seed in (0, 1):
        export(tmp_path / str(seed), make(seed), b"", FACTS)
    one, two = ((tmp_path / str(seed) / "model.safetensors").read_bytes() for seed in (0, 1))
    assert one != two


def test_the_tied_weights_are_written_once(tmp_path: Path) -> None:
    export(tmp_path, make(), b"", FACTS)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert names == set(make().state_dict()) - {"vocabulary_projection.weight"}


def test_a_configuration_that_does_not_fit_the_weights_is_refused(tmp_path: Path) -> None:
    export(tmp_path, make(), b"", FACTS)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocabulary_size": 299}))
    with pytest.raises(RuntimeError, match="size mismatch"):
        load(tmp_path)


def test_training_goes_on_from_saved_progress_as_if_never_interrupted(tmp_path: Path) -> None:
    straight = make()
    train(straight, make_optimizer(straight, Training()), 6)
    first = make()
    optimizer = make_optimizer(first, Training())
    train(first, optimizer, 3)
    save_progress(tmp_path / "scratch" / "progress.pt", first, optimizer, [{"step": 2, "train_loss": 0.1}])
    resumed = make(seed=9)
    optimizer = make_optimizer(resumed, Training())
    losses = load_progress(tmp_path / "scratch" / "progress.pt", resumed, optimizer)
    train(resumed, optimizer, 3)
    assert losses == [{"step": 2, "train_loss": 0.1}]
    assert all(torch.equal(p, q) for p, q in zip(straight.parameters(), resumed.parameters(), strict=True))


def test_without_progress_there_is_nothing_to_resume(tmp_path: Path) -> None:
    model = make()
    assert load_progress(tmp_path / "progress.pt", model, make_optimizer(model, Training())) == []
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), make().parameters(), strict=True))


def test_progress_that_could_not_be_written_whole_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    optimizer = make_optimizer(model, Training())
    save_progress(tmp_path / "progress.pt", model, optimizer, [{"step": 0}])

    def break_off(state: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", break_off)
    with pytest.raises(OSError, match="No space"):
        save_progress(tmp_path / "progress.pt", model, optimizer, [{"step": 0}, {"step": 1}])
    assert load_progress(tmp_path / "progress.pt", model, optimizer) == [{"step": 0}]
