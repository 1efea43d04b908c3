"""Models that read something beside the tokens.

One is of these tests: it reads a mood, whose embedding it adds to the states of a row at every token. The other is one
of transformers, which a recipe can name.
"""

from pathlib import Path
from typing import Any

import torch
from run_cases import write_home, write_rows
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedModel

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


STATES = """
import torch

def states(row, *, scale=1.0):
    numbers = torch.Generator().manual_seed(row["mood"])
    return {"encoder_hidden_states": scale * torch.randn(1, 3, 32, generator=numbers)}
"""
"""A function for `data.inputs`: the states of an encoder, another for each mood, which the model attends to."""


def reading_model() -> PreTrainedModel:
    """A GPT-2 that attends to states which its prompts bring."""
    config = AutoConfig.for_model(
        "gpt2",
        vocab_size=264,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
        add_cross_attention=True,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def states(number: int) -> Inputs:
    """States that it attends to."""
    return {"encoder_hidden_states": torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(number))}


def write_reading_home(folder: Path) -> Path:
    """What a run needs whose model attends to the states of `STATES`."""
    write_home(folder)
    reading_model().save_pretrained(folder / "model")
    for name, count in (("train", 12), ("held_out", 4)):
        rows = [{"prompt": "which?", "answer": "a", "id": f"{name}{mood}", "mood": mood} for mood in range(count)]
        write_rows(folder / f"{name}.jsonl", rows)
    (folder / "states.py").write_text(STATES)
    return folder
