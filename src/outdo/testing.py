"""Helpers for tests: tiny models of many architectures, tokenizers, and an engine that returns scripted answers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, FinishReason, Request
from outdo.utils.errors import EngineError

END, PAD = "<|end|>", "<|pad|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ARCHITECTURES: dict[str, dict[str, object]] = {  # model type: its special settings, with the names of its config
    "qwen3": {},
    "qwen2": {},
    "llama": {},
    "mistral": {"sliding_window": 8},
    "gemma2": {
        "sliding_window": 8,
        "query_pre_attn_scalar": 8,
    },  # caps its logits; every second layer has a sliding window
    "gemma3_text": {"sliding_window": 8, "query_pre_attn_scalar": 8},
    "gpt2": {},  # learned positions, dropout 0.1
    "gpt_neox": {},  # rotates a quarter of each head; attention and MLP in parallel
    "lfm2": {"full_attn_idxs": [1]},  # short convolutions, and attention in the second layer
    "qwen3_5_text": {  # gated delta nets, and attention in every second layer
        "full_attention_interval": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 16,
    },
    "bailing_hybrid": {  # Kimi's delta attention, and latent attention in every second layer
        "layer_group_size": 2,
        "first_k_dense_replace": 99,  # no experts
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    },
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 8},  # Mamba 2
    "mamba": {"state_size": 4},  # no attention, no limit of length
}
FOREIGN: dict[str, set[str]] = {  # model type: the sizes that its config does not have
    "gpt2": {"intermediate_size", "num_key_value_heads", "head_dim"},
    "gpt_neox": {"num_key_value_heads", "head_dim"},
    "mamba": {"num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"},
}


def tiny_model(
    folder: str | Path | None = None,
    *,
    seed: int = 0,
    arch: str = "qwen3",
    vocab: int = 264,
    hidden: int = 32,
    layers: int = 2,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Make a small random model in evaluation mode and a byte-level tokenizer; save them if `folder` is given.

    `arch` is one of `ARCHITECTURES`; `vocab` the rows of the embedding (at least 261). The weights
    depend only on `seed`. They are large enough that attention is not uniform: with the usual 0.02 it is, and hides
    mistakes.
    """
    tokenizer = byte_bpe_tokenizer([], vocab)
    shape = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    shape = {key: value for key, value in shape.items() if key not in FOREIGN.get(arch, ())}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.for_model(arch, **(shape | ARCHITECTURES[arch]))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if folder is not None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return model, tokenizer


def byte_bpe_tokenizer(texts: Iterable[str], vocab_size: int = 512, *, chat: bool = False) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on `texts`. It decodes what it encodes exactly; every digit is a token of its
    own.

    It has an end and a padding token, adds no tokens to a text, and has at most `vocab_size` tokens, or at least 261:
    the bytes and five special tokens. With `chat` it has a chat template.
    """
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, PAD, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=END, pad_token=PAD, additional_special_tokens=ROLES
    )
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


# ------------------------------------------------------------------------------------------------ the scripted engine

ScriptedCompletion = str | Sequence[int] | Completion


class ScriptedEngine(Engine):
    """An engine that returns the answers of `script`: its items in order, or the result of calling it with the request.

    An answer is a text, which is encoded and ended with the end-of-sequence token; token ids, which are used unchanged;
    or a `Completion`, which is returned unchanged. Texts and ids are cut at the token limits like any answer, and each
    of their tokens has the log-probability `logprob`. `requests` holds all requests in order.
    """

    reads_inputs = True

    def __init__(
        self,
        script: Sequence[ScriptedCompletion] | Callable[[Request], ScriptedCompletion],
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        logprob: float = -1.0,
    ) -> None:
        self.script = script if callable(script) else _in_order(script)
        self._tokenizer = tokenizer  # None: that of the policy that is loaded
        self.logprob = logprob
        self._version = 0
        self.requests: list[Request] = []

    def update_weights(self, policy: PolicyView) -> None:
        """Store the version of the policy, and its tokenizer where none was given."""
        self._version = policy.version
        self._tokenizer = self._tokenizer or policy.tokenizer

    @property
    def version(self) -> int:
        """The number of optimiser steps of the policy that it was given last."""
        return self._version

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that was given, or that of the policy. Raises `ValueError` if there is none yet."""
        if self._tokenizer is None:
            raise ValueError("a text needs a tokenizer: give the engine one, or call `update_weights(policy)` first")
        return self._tokenizer

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return `logprob` for each token after the first of each sequence."""
        return [[self.logprob] * (len(sequence) - 1) for sequence in sequences]

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return the next answer of the script for each request. Raises `EngineError` when there is none left."""
        return [self._complete(request, sampling) for request in requests]

    def _complete(self, request: Request, sampling: SamplingParams) -> Completion:
        self.requests.append(request)
        completion = self.script(request)
        if isinstance(completion, Completion):
            return completion
        if isinstance(completion, str):
            ids = self.tokenizer.encode(completion, add_special_tokens=False)
            completion = [*ids, self.tokenizer.eos_token_id]
        limit = min(request.max_tokens, sampling.max_tokens)
        return Completion(
            token_ids=tuple(completion[:limit]),
            logprobs=(self.logprob,) * len(completion[:limit]),
            finish_reason=FinishReason.length if len(completion) > limit else FinishReason.stop,
            policy_version=self.version,
        )


def _in_order(completions: Sequence[ScriptedCompletion]) -> Callable[[Request], ScriptedCompletion]:
    remaining: Iterator[ScriptedCompletion] = iter(completions)

    def next_completion(request: Request) -> ScriptedCompletion:
        for completion in remaining:
            return completion
        raise EngineError(f"the script has {len(completions)} answers, and one more was asked: {request.stream}")

    return next_completion
