"""A model that reads a mood beside the tokens: it adds its embedding to the states of a row, at every token."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from outdo.types import Prompt
from outdo.types.inputs import Inputs

MOODS = 4


class MoodModel(LlamaModel):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.moods = nn.Embedding(MOODS, config.hidden_size)
        nn.init.normal_(self.moods.weight)

    def forward(self, input_ids: Tensor | None = None, *, mood: Tensor | None = None, **inputs: Any) -> Any:  # type: ignore[override]
        states = self.embed_tokens(input_ids)
        if mood is not None:
            assert len(mood) == len(states)
            states = states + self.moods(mood)[:, None]
        return super().forward(**{**inputs, "inputs_embeds": states})


class MoodyLlama(LlamaForCausalLM):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model = MoodModel(config)

    def forward(self, input_ids: Tensor | None = None, *, mood: Tensor | None = None, **inputs: Any) -> Any:  # type: ignore[override]
        read: dict[str, Any] = {"input_ids": input_ids, "mood": mood, **inputs}
        return super().forward(**read)


def llama(kind: type[LlamaForCausalLM] = MoodyLlama) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=264,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.5,
    )
    return kind(config).eval()


def mood(number: int) -> Inputs:
    return {"mood": torch.tensor([number])}


def prompt(number: int, *, inputs: Inputs | None = None) -> Prompt:
    return Prompt(id=str(number), text="?", token_ids=(3, 4, 5), inputs=mood(number) if inputs is None else inputs)
