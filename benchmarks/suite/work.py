"""Build the model, the tokenizer and the prompts of a case: the same in the process of every implementation."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.generation.logits_process import LogitsProcessor

from benchmarks.suite.roofline import Weights
from benchmarks.suite.setting import Setting
from outdo.models.adapter import adapter_config
from outdo.models.loading import load_model

END, PAD = 0, 1
"""Tokens that no prompt contains."""


def model_of(setting: Setting) -> PreTrainedModel:
    """Return the model of the case with random weights, or the one in the user's folder; float32."""
    if setting.model is not None:
        return load_model(setting.model, setting.device)
    shape = setting.case.shape
    config = Qwen3Config(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        intermediate_size=shape.mlp,
        vocab_size=shape.vocabulary,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    torch.manual_seed(setting.seed)
    model: PreTrainedModel = Qwen3ForCausalLM(config).float().eval()
    return model.to(setting.device)  # type: ignore[arg-type]


def adapter_of(setting: Setting) -> Any:
    """Return the configuration of the case's LoRA in PEFT; None if all weights are trained."""
    rank = setting.case.rank
    return adapter_config("lora", r=rank, lora_alpha=2 * rank) if rank else None


def tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerFast:
    """Return a tokenizer in which token 7 is the word "t7", for any model."""
    words = {f"t{index}": index for index in range(model.config.get_text_config().vocab_size)}
    backend = Tokenizer(models.WordLevel(words, unk_token=f"t{PAD}"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=f"t{END}", pad_token=f"t{PAD}")


def prompts_of(setting: Setting, vocabulary: int) -> list[tuple[int, ...]]:
    """Return the token ids of each prompt."""
    random = torch.Generator().manual_seed(setting.seed + 1)
    shape = (setting.case.prompts, setting.case.prompt_tokens)
    return [tuple(row) for row in torch.randint(2, vocabulary, shape, generator=random).tolist()]


def reward_of(sample: int) -> float:
    """Return 1 for every other answer of a group, so that the rewards of each group differ."""
    return float(sample % 2)


def weights_of(model: PreTrainedModel) -> Weights:
    """Return the sizes that the roofline is computed from."""
    config = model.config.get_text_config()
    matrices = sum(rows * columns for rows, columns in matrices_of(model))
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return Weights(
        matrices=matrices,
        head=config.vocab_size * config.hidden_size,
        all=sum(weight.numel() for weight in model.parameters()),
        layers=config.num_hidden_layers,
        attention=width,
    )


def matrices_of(model: PreTrainedModel) -> list[tuple[int, int]]:
    """Return the rows and columns of the linear layers without the head."""
    head = model.get_output_embeddings()
    layers = (each for each in model.modules() if isinstance(each, nn.Linear) and each is not head)
    return [(layer.out_features, layer.in_features) for layer in layers]


def seconds(work: Callable[[], object], device: str) -> float:
    """Return the time of `work` in seconds, including the queue of an accelerator."""
    began = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - began


def synchronise(device: str) -> None:
    """Wait until an accelerator has finished."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def most_memory(device: str) -> int:
    """Return the peak bytes on an accelerator; 0 on a CPU, where the memory of the process is measured instead."""
    return torch.cuda.max_memory_allocated() if device.startswith("cuda") else 0


class ForcedLengths(LogitsProcessor):
    """Makes answer i end after exactly `lengths[i]` tokens, in one call of `generate`."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = torch.tensor(lengths)
        self.ends = set(lengths)
        self.start: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Make the end token impossible or certain."""
        if self.start is None:
            self.start = input_ids.shape[1]
        scores[:, END] = -torch.inf
        index = input_ids.shape[1] - self.start + 1
        if index in self.ends:
            ended = (self.lengths <= index).to(scores.device)
            scores[ended] = -torch.inf
            scores[ended, END] = 0.0
        return scores
