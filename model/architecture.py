"""A GPT: token and position embeddings, pre-norm Transformer blocks, a tied vocabulary projection.

Shapes: B batch, T time, C width, H heads, D head width, V vocabulary.
Source: Radford et al. 2019 (GPT-2); initialisation as there, so that the first loss is about ln V.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline_config.settings import ModelSettings

INITIAL_STD = 0.02  # Source: GPT-2


class CausalSelfAttention(nn.Module):
    """Lets each position read the positions before it, and itself."""

    def __init__(self, settings: ModelSettings):
        super().__init__()
        self.heads = settings.heads
        self.qkv = nn.Linear(settings.width, 3 * settings.width)
        self.output = nn.Linear(settings.width, settings.width)

    def forward(self, x_BTC: Tensor) -> Tensor:
        B, T, C = x_BTC.shape
        q_BHTD, k_BHTD, v_BHTD = (
            part.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            for part in self.qkv(x_BTC).split(C, dim=2)
        )
        mixed_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        return self.output(mixed_BHTD.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    """Transforms each position on its own."""

    def __init__(self, settings: ModelSettings):
        super().__init__()
        self.expand = nn.Linear(settings.width, 4 * settings.width)
        self.project = nn.Linear(4 * settings.width, settings.width)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.project(F.gelu(self.expand(x_BTC)))


class TransformerBlock(nn.Module):
    """Attention and MLP, each added to the residual stream after a norm."""

    def __init__(self, settings: ModelSettings):
        super().__init__()
        self.norm_1 = nn.LayerNorm(settings.width)
        self.attention = CausalSelfAttention(settings)
        self.norm_2 = nn.LayerNorm(settings.width)
        self.mlp = MLP(settings)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attention(self.norm_1(x_BTC))
        return x_BTC + self.mlp(self.norm_2(x_BTC))


class GPT(nn.Module):
    """Scores of the next token at every position."""

    def __init__(self, settings: ModelSettings, vocabulary_size: int):
        super().__init__()
        self.settings = settings
        self.token_embedding = nn.Embedding(vocabulary_size, settings.width)
        self.position_embedding = nn.Embedding(settings.max_context, settings.width)
        self.blocks = nn.ModuleList(TransformerBlock(settings) for _ in range(settings.layers))
        self.final_norm = nn.LayerNorm(settings.width)
        self.vocabulary_projection = nn.Linear(settings.width, vocabulary_size, bias=False)
        self.vocabulary_projection.weight = self.token_embedding.weight
        self._initialise()

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits [B, T, V], and the mean cross-entropy in nats if there are targets.

        Raises:
            ValueError: more positions than the model has.
        """
        T = ids_BT.shape[1]
        if self.settings.max_context < T:
            raise ValueError(f"{T} tokens do not fit into a context of {self.settings.max_context}")
        positions_T = torch.arange(T, device=ids_BT.device)
        x_BTC = self.token_embedding(ids_BT) + self.position_embedding(positions_T)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        logits_BTV = self.vocabulary_projection(self.final_norm(x_BTC))
        if targets_BT is None:
            return logits_BTV, None
        return logits_BTV, F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())

    def _initialise(self) -> None:
        residual_std = INITIAL_STD / math.sqrt(2 * self.settings.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                into_residual = name.endswith(("attention.output.weight", "mlp.project.weight"))
                nn.init.normal_(parameter, std=residual_std if into_residual else INITIAL_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
