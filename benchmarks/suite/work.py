"""A case as a model, a tokenizer and prompts: the same ones in every contender's process."""

import time
from collections.abc import Callable, Sequence

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.generation.logits_process import LogitsProcessor

from benchmarks.suite.floor import Weights
from benchmarks.suite.setting import Setting
from outdo.models.loading import load_model

END, PAD = 0, 1
"""Tokens that prompts do not hold."""


def model_of(setting: Setting) -> PreTrainedModel:
    """The case's model with random weights, or the one in the user's folder; float32."""
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


def tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerFast:
    """Token 7 is the word "t7": text and tokens are the same to every contender, whatever the model."""
    words = {f"t{index}": index for index in range(model.config.get_text_config().vocab_size)}
    backend = Tokenizer(models.WordLevel(words, unk_token=f"t{PAD}"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=f"t{END}", pad_token=f"t{PAD}")


def prompts_of(setting: Setting, vocabulary: int) -> list[tuple[int, ...]]:
    """The token ids of each prompt."""
    random = torch.Generator().manual_seed(setting.seed + 1)
    shape = (setting.case.prompts, setting.case.prompt_tokens)
    return [tuple(row) for row in torch.randint(2, vocabulary, shape, generator=random).tolist()]


def reward_of(sample: int) -> float:
    """Of a group's answers every other one is rewarded, so that each group has something to learn from."""
    return float(sample % 2)


def weights_of(model: PreTrainedModel) -> Weights:
    """What the floor is counted from."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    matrices = sum(each.weight.numel() for each in model.modules() if isinstance(each, nn.Linear) and each is not head)
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return Weights(
        matrices=matrices,
        head=config.vocab_size * config.hidden_size,
        all=sum(weight.numel() for weight in model.parameters()),
        layers=config.num_hidden_layers,
        attention=width,
    )


def seconds(work: Callable[[], object], device: str) -> float:
    """What `work` takes, an accelerator's queue included."""
    began = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - began


def synchronise(device: str) -> None:
    """Wait for an accelerator."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def most_memory(device: str) -> int:
    """Bytes of an accelerator that were in use at once; 0 on a CPU, where the process's own memory says it."""
    return torch.cuda.max_memory_allocated() if device.startswith("cuda") else 0


class ForcedLengths(LogitsProcessor):
    """Lets answer i end after `lengths[i]` tokens, neither before nor later: for `generate`, of one call."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = torch.tensor(lengths)
        self.ends = set(lengths)
        self.start: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The end is out of the question, or certain."""
        if self.start is None:
            self.start = input_ids.shape[1]
        scores[:, END] = -torch.inf
        index = input_ids.shape[1] - self.start + 1
        if index in self.ends:
            over = (self.lengths <= index).to(scores.device)
            scores[over] = -torch.inf
            scores[over, END] = 0.0
        return scores
