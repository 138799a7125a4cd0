"""Text from a checkpoint, one token at a time: `python -m model.generate CONFIG`.

CONFIG is a JSON file with `checkpoint` (folder), `text_generation` (settings) and `output` (file). The
record that is written holds all that the text follows from.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from model.architecture import GPT
from model.checkpoint import TOKENIZER, load
from pipeline_config.settings import TextGeneration

END_OF_DOCUMENT = "<|endoftext|>"


@torch.no_grad()
def generate(model: GPT, ids: list[int], settings: TextGeneration, end: int | None = None) -> list[int]:
    """The prompt's ids and those that follow, to `max_tokens` or the end token.

    A text that outgrows the model's context is continued from its last `max_context` tokens.
    """
    sampler = torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.max_tokens):
        context_1T = torch.tensor([ids[-model.settings.max_context :]])
        logits_V = model(context_1T)[0][0, -1]
        token = next_token(logits_V, settings, sampler)
        if token == end:
            break
        ids = [*ids, token]
    return ids


def next_token(logits_V: Tensor, settings: TextGeneration, sampler: torch.Generator) -> int:
    """A token drawn from the logits [V]; the most probable one at temperature 0."""
    if settings.temperature == 0:
        return int(logits_V.argmax())
    logits_V = logits_V / settings.temperature
    if 0 < settings.top_k < len(logits_V):
        threshold = logits_V.topk(settings.top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < threshold, -torch.inf)
    return int(torch.multinomial(logits_V.softmax(dim=0), 1, generator=sampler))


def main(path: str) -> int:
    """Writes the record of one generation."""
    config = json.loads(Path(path).read_text("utf-8"))
    settings = TextGeneration.model_validate(config["text_generation"])
    folder = Path(config["checkpoint"])
    model, facts = load(folder)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    end = tokenizer.token_to_id(END_OF_DOCUMENT)
    prompt = tokenizer.encode(settings.prompt).ids or [end]
    ids = generate(model, prompt, settings, end)
    record = settings.model_dump() | {
        "text": tokenizer.decode(ids),
        "ids": ids,
        "prompt_tokens": len(prompt),
        "tokenizer_digest": facts["tokenizer_digest"],
    }
    Path(config["output"]).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
