"""The built-in engine samples with what prompts bring beside their tokens, and as the trainer will score it."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from moods import MOODS, llama, mood
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from outdo.models.forward import Forward
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes, Scorer
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import byte_bpe_tokenizer
from outdo.types import Batch, Completion, Request
from outdo.types.inputs import Inputs
from outdo.utils.errors import ModelError
from outdo.utils.rng import Stream

SAMPLING = SamplingParams(max_tokens=8)
IN_TURN = (0, 1, 2, 3, 3, 2, 1, 0)


def engine_of(model: LlamaForCausalLM | None = None) -> BuiltinEngine:
    return BuiltinEngine(Policy(model or llama(), byte_bpe_tokenizer([], 264)), seed=3)


def requests(moods: Sequence[int]) -> list[Request]:
    """Requests whose tokens and random numbers are the same whatever their moods are; prompts of two lengths."""
    return [request(index, mood(number)) for index, number in enumerate(moods)]


def request(index: int, inputs: Inputs) -> Request:
    return Request(
        token_ids=(7, 8, 3, 4, 5)[2 * (index % 2) :],
        stream=Stream("train", 1, str(index), 0),
        max_tokens=8,
        inputs=inputs,
    )


def trained_logprobs(asked: Sequence[Request], answers: Sequence[Completion]) -> list[torch.Tensor]:
    """Log π of the tokens of each answer by the plain forward pass."""
    batch = Batch.of_tokens(
        [each.token_ids for each in asked],
        [answer.token_ids for answer in answers],
        inputs=[each.inputs for each in asked],
    )
    scores = Scorer(Forward(llama()), BatchSizes()).logprobs(batch)
    return [row[mask] for row, mask in zip(scores, batch.loss_mask, strict=True)]


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_log_probabilities_are_those_of_the_trainer_with_the_inputs_of_each_row(rows: int) -> None:
    engine, asked = engine_of(), requests(IN_TURN)
    assert engine.choice is not None
    assert engine.choice.mode.continuous  # which samples requests without inputs
    engine.rows = rows
    answers = engine.generate(asked, SAMPLING)
    for answer, expected in zip(answers, trained_logprobs(asked, answers), strict=True):
        torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=0)


def test_tokens_do_not_depend_on_the_other_rows_of_the_batch() -> None:
    engine, asked = engine_of(), requests(IN_TURN)
    together = engine.generate(asked, SAMPLING)
    alone = [engine.generate([each], SAMPLING)[0] for each in asked]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]


def test_swapping_the_inputs_of_two_rows_changes_both_and_no_other() -> None:
    engine, swapped = engine_of(), (1, 0, *IN_TURN[2:])
    before, after = (engine.generate(requests(moods), SAMPLING) for moods in (IN_TURN, swapped))
    changed = [old.token_ids != new.token_ids for old, new in zip(before, after, strict=True)]
    assert changed == [True, True, *[False] * 6]


def test_requests_without_inputs_are_sampled_as_before() -> None:
    engine, plain = engine_of(), [request(index, {}) for index in range(MOODS)]
    before = engine.generate(plain, SAMPLING)
    engine.generate(requests(IN_TURN), SAMPLING)
    assert engine.generate(plain, SAMPLING) == before
    assert all(answer.tokens_read is not None for answer in before)  # by continuous batching


def test_an_input_that_the_model_does_not_name_is_refused_before_it_samples() -> None:
    engine = engine_of(llama(LlamaForCausalLM))
    with pytest.raises(ModelError, match=r"bring the input mood, and the forward method of Llama.* has no parameter"):
        engine.generate(requests(IN_TURN), SAMPLING)
    assert engine.progress == 0


def test_an_input_that_generate_would_take_for_its_own_setting_is_refused() -> None:
    class WarmModel(LlamaModel):
        def forward(self, *arguments: Any, temperature: Any = None, **inputs: Any) -> Any:  # type: ignore[override]
            return super().forward(*arguments, **inputs)

    class Warm(LlamaForCausalLM):
        def __init__(self, config: LlamaConfig) -> None:
            super().__init__(config)
            self.model = WarmModel(config)

        def forward(self, *arguments: Any, temperature: Any = None, **inputs: Any) -> Any:  # type: ignore[override]
            return super().forward(*arguments, **inputs)

    engine = engine_of(llama(Warm))
    with pytest.raises(ModelError, match=r"input temperature, which model.generate would take for its own setting"):
        engine.generate([request(0, {"temperature": torch.ones(1)})], SAMPLING)


def test_an_input_of_which_a_prompt_has_nothing_is_left_out() -> None:
    nothing: Inputs = {"mood": torch.zeros(0, dtype=torch.int64)}
    engine = engine_of()
    (answer,) = engine.generate([request(1, nothing)], SAMPLING)
    (expected,) = engine.generate([request(1, {})], SAMPLING)
    assert answer.token_ids == expected.token_ids
