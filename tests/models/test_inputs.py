"""What a model reads beside tokens goes with its row, from the column of a question to the model, and never to another.

The model is that of `moods`: another mood is another log-probability.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from moods import MOODS, llama, mood, prompt
from policy_cases import updated
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import outdo
from outdo.extras.staleness.saved_groups import groups_of_state, state_of_groups
from outdo.models.choose_forward import choose_forward
from outdo.models.forward import Forward
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes, Scorer
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.run.checkpoints.state_file import pack, unpack
from outdo.run.evaluation.evaluation import evaluate
from outdo.testing import ScriptedEngine, byte_bpe_tokenizer
from outdo.types import Batch, FinishReason, Group, Rollout
from outdo.types.inputs import Inputs
from outdo.utils.errors import ModelError, UserError


def rollout(*tokens: int) -> Rollout:
    return Rollout(
        token_ids=tokens,
        loss_mask=(True,) * len(tokens),
        logprobs=(-1.0,) * len(tokens),
        text="",
        reward=0.0,
        finish_reason=FinishReason.stop,
        policy_version=0,
    )


def groups() -> list[Group]:
    """Questions with equal tokens, equal answers, and another mood each."""
    return [Group(prompt=prompt(number), rollouts=(rollout(6, 7), rollout(8, 9, 10))) for number in range(MOODS)]


def expected(batch: Batch, moods: Sequence[int]) -> Tensor:
    """Log π of the trained tokens by the model's own call, a row at a time; 0 elsewhere."""
    model, result = llama(), torch.zeros(batch.token_ids.shape)
    for row, number in enumerate(moods):
        ids = batch.token_ids[row : row + 1]
        with torch.no_grad():
            logprobs = model(ids, **mood(number)).logits.log_softmax(-1)[0]
        result[row, 1:] = logprobs[:-1].gather(1, ids[0, 1:, None]).squeeze(1)
    return result * batch.loss_mask


FORWARDS = {
    "plain": lambda model: Forward(model),
    "padded": lambda model: choose_forward(model, "padded"),
    "shared": lambda model: choose_forward(model, "shared"),
}


@pytest.mark.parametrize("budget", [1, 12, 1000])
@pytest.mark.parametrize("layout", FORWARDS)
def test_each_row_is_computed_with_its_own_inputs(layout: str, budget: int) -> None:
    batch = Batch.from_groups(groups())
    scorer = Scorer(FORWARDS[layout](llama()), BatchSizes(micro_batch_tokens=budget))
    moods = [number for number in range(MOODS) for _ in range(2)]
    torch.testing.assert_close(scorer.logprobs(batch), expected(batch, moods), atol=2e-5, rtol=0)
    others = expected(batch, moods[::-1])
    assert (scorer.logprobs(batch) - others).abs().max() > 0.1


@pytest.mark.parametrize("budget", [1, 12, 1000])
@pytest.mark.parametrize("attention", ["padded", "shared"])
def test_the_gradient_of_each_row_is_that_with_its_own_inputs(attention: Any, budget: int) -> None:
    batch = Batch.from_groups(groups())
    random = torch.randn(batch.token_ids.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = batch.with_(advantages=random * batch.loss_mask, old_logprobs=torch.zeros_like(random))
    alone = llama().double()
    logprobs = torch.stack(
        [
            alone(batch.token_ids[row : row + 1], **mood(row // 2)).logits.log_softmax(-1)[0, :-1]
            for row in range(len(batch))
        ]
    ).gather(2, batch.token_ids[:, 1:, None])
    (random * batch.loss_mask)[:, 1:].mul(-logprobs.squeeze(2)).sum().backward()
    sizes = BatchSizes(micro_batch_tokens=budget)
    policy = Policy(llama().double(), byte_bpe_tokenizer([], 264), attention=attention, batch_sizes=sizes)
    _, gradient = updated(policy, batch, outdo.reinforce())
    expected = torch.cat([weight.grad.flatten() for weight in alone.parameters() if weight.grad is not None])
    assert len(expected) == sum(weight.numel() for weight in alone.parameters())
    torch.testing.assert_close(gradient, expected / len(batch), rtol=1e-6, atol=1e-9)


def test_rows_keep_their_inputs_wherever_a_batch_is_split() -> None:
    batch = Batch.from_groups(groups())

    def moods(part: Batch) -> list[int]:
        return [int(inputs["mood"]) for inputs in part.inputs]

    assert moods(batch.rows(torch.tensor([7, 0, 2]))) == [3, 0, 1]
    assert [moods(part) for part in batch.minibatches(2)] == [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert [moods(part) for part in batch.microbatches(10)] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    column = torch.arange(3).expand(2, 3)
    assert moods(batch.gathered(torch.tensor([5, 1]), column, column >= 0)) == [2, 0]
    assert batch.to("meta").inputs[0]["mood"].device.type == "meta"


def test_the_conversations_of_an_episode_are_computed_with_its_inputs() -> None:
    batch = Batch.from_groups([Group(prompt=prompt(number), rollouts=(rollout(6, 7),)) for number in range(2)])
    forked = batch.with_(previous=torch.tensor([[-1, 0, 1, 2, 2]] * 2))
    scores = Scorer(Forward(llama()), BatchSizes()).logprobs(forked)
    for column, token in ((3, 6), (4, 7)):
        alone = Batch.from_groups([Group(prompt=prompt(number), rollouts=(rollout(token),)) for number in range(2)])
        torch.testing.assert_close(scores[:, column], expected(alone, [0, 1])[:, 3], atol=2e-5, rtol=0)


def test_groups_that_wait_in_a_checkpoint_keep_their_inputs() -> None:
    waiting = groups()
    known = {group.prompt.id: group.prompt for group in waiting}
    known["1"] = prompt(1, inputs=mood(0))  # the environment has put another in its place
    restored = groups_of_state(unpack(*pack(state_of_groups(waiting, known))), known)  # type: ignore[arg-type]
    assert [int(group.prompt.inputs["mood"]) for group in restored] == [0, 1, 2, 3]


def test_inputs_are_made_of_the_columns_of_a_row() -> None:
    tokenizer: PreTrainedTokenizerFast = byte_bpe_tokenizer(["which?"])
    rows = [{"question": "which?", "answer": "a", "feels": number} for number in range(3)]
    questions = outdo.questions_from(rows)
    prompts = outdo.tokenise(questions, tokenizer, inputs=lambda row: mood(row["feels"]))
    assert [int(each.inputs["mood"]) for each in prompts] == [0, 1, 2]


def test_requests_have_the_inputs_of_their_prompts() -> None:
    requests = SingleTurn(lambda completion: 0.0).requests(
        [prompt(2), prompt(1)], 2, SamplingParams(max_tokens=3), step=0, purpose="train"
    )
    assert [int(request.inputs["mood"]) for request in requests] == [2, 2, 1, 1]


def test_inputs_that_cannot_be_made_are_refused_together_with_their_questions() -> None:
    rows = [{"question": "which?", "answer": "a", **row} for row in ({"feels": 1}, {}, {"feels": 2.5})]

    def feels(row: Mapping[str, Any]) -> Inputs:
        return mood(row["feels"]) if isinstance(row["feels"], int) else {"mood": row["feels"]}

    with pytest.raises(UserError) as caught:
        outdo.tokenise(outdo.questions_from(rows), byte_bpe_tokenizer(["which?"]), inputs=feels)
    assert "question 2: inputs: KeyError: 'feels'" in str(caught.value)
    assert "question 3: the input mood is float, expected a tensor" in str(caught.value)


def test_an_engine_that_samples_from_tokens_alone_refuses_them_in_training_and_evaluation() -> None:
    class OfTokens(ScriptedEngine):
        reads_inputs = False

    engine, environment = OfTokens(["a"], byte_bpe_tokenizer(["which?"])), SingleTurn(lambda completion: 0.0)
    sampling = SamplingParams(max_tokens=3)
    sampler = GroupSampler(engine, environment, group_size=1, sampling=sampling)
    refusal = "question 2 brings the input mood, and OfTokens samples from tokens alone"
    with pytest.raises(UserError, match=refusal):
        sampler(None, [prompt(2)], step=0)  # type: ignore[arg-type]  # before it looks at the policy
    with pytest.raises(UserError, match=refusal):
        evaluate(engine, environment, [prompt(2)], sampling)


def test_a_model_that_does_not_name_an_input_is_refused() -> None:
    forward = Forward(llama(LlamaForCausalLM), plain_head=True)
    with pytest.raises(ModelError, match="forward method of LlamaModel has no parameter of this name"):
        Scorer(forward, BatchSizes()).logprobs(Batch.from_groups(groups()))


def test_rows_of_a_batch_have_the_same_inputs_or_say_that_there_is_nothing() -> None:
    without = Group(prompt=prompt(1, inputs={}), rollouts=(rollout(6),))
    with pytest.raises(ValueError, match="row 2 has no input mood"):
        Batch.from_groups([groups()[0], without])
    nothing = Group(prompt=prompt(1, inputs={"mood": torch.zeros(0, dtype=torch.int64)}), rollouts=(rollout(6),))
    scores = Scorer(Forward(llama()), BatchSizes()).logprobs(Batch.from_groups([nothing]))
    plain = Scorer(Forward(llama()), BatchSizes()).logprobs(Batch.of_tokens([(3, 4, 5)], [(6,)]))
    assert torch.equal(scores, plain)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"mood": 3}, "the input mood is int, expected a tensor"),
        ({"mood": torch.tensor(3)}, "the input mood is a tensor without dimensions"),
        ({"input_ids": torch.zeros(1, 3)}, "outdo makes input_ids of the tokens"),
    ],
)
def test_a_prompt_with_inputs_that_no_batch_can_join_is_refused(inputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prompt(0, inputs=inputs)
