"""All conversations of an agent's episode are trained: each answer once, after the tokens that it was sampled after."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from agent_cases import agent, play
from engine_cases import fresh
from episode_cases import TEMPLATE, question, tool_tokenizer
from policy_cases import double, updated
from torch import Tensor

from outdo.algorithms.advantages import compute_advantages, group_standardised, per_token
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.surrogates import clip
from outdo.algorithms.objectives.weights import Weight, constant, prompt_mean, sequence_mean, token_mean
from outdo.extras.agents.agent import Agent
from outdo.models.conversations import conversations
from outdo.models.critic import own_model
from outdo.models.policy import Policy
from outdo.models.scorer import token_scores
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import ScriptedEngine, tiny_model
from outdo.types import Batch, Completion, FinishReason, Group, Request
from outdo.types.rows import tokens_read
from outdo.utils.rng import Stream

SAMPLING = SamplingParams(max_tokens=160)
Made = tuple[Policy, list[Group], list[list[tuple[Request, Completion]]]]


async def wander(row: dict[str, Any], base_url: str, http_client: Any) -> float:
    """Go on, go back, rewrite the history, ask the same twice, and begin anew; some episodes do less of it."""

    async def ask(messages: list[Any]) -> list[Any]:
        request = {"messages": messages, "max_tokens": 6}
        answer = await http_client.post(f"{base_url}/chat/completions", json=request)
        return [*messages, answer.json()["choices"][0]["message"]]

    def said(text: str) -> dict[str, str]:
        return {"role": "user", "content": text}

    first = await ask(row["messages"])
    reward = sum(map(str.isalnum, first[-1]["content"])) / 6
    further = await ask([*first, said("Go on.")])
    await ask([*further, said("And on.")])
    if reward < 0.5:
        await ask([*first, said("Another way.")])
        await ask([*row["messages"], {"role": "assistant", "content": "(left out)"}, said("Go on.")])
        await ask(row["messages"])
        await ask([{"role": "system", "content": "Be brief."}, said("What else?")])
    return reward


class Seen(BuiltinEngine):
    """An engine that keeps what it was asked and what it has answered, by the name of the episode."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.answers: dict[Stream | None, list[tuple[Request, Completion]]] = defaultdict(list)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        completions = super().generate(requests, sampling)
        for request, completion in zip(requests, completions, strict=True):
            self.answers[request.episode].append((request, completion))
        return completions


def episodes(arch: str = "qwen3") -> Made:
    """A policy, groups of episodes in which some have several conversations, and the answers of each episode."""
    policy = Policy(tiny_model(arch=arch)[0], tool_tokenizer(TEMPLATE))
    environment: Agent = agent(wander, tokenizer=policy.tokenizer)
    engine = Seen(policy)
    prompts = [question(environment.template, f"{n}?", str(n)) for n in range(2)]
    groups = environment.rollouts(engine, prompts, 4, SAMPLING, step=1, purpose="train")
    order = [Stream("train", 1, group.prompt.id, sample) for group in groups for sample in range(4)]
    return policy, groups, [engine.answers[each] for each in order]


@pytest.fixture(scope="module")
def made() -> Made:
    return episodes()


def rows_by_hand(answers: Sequence[Sequence[tuple[Request, Completion]]]) -> Batch:
    """Every answer of every episode as a row of its own, after the tokens that the engine was given."""
    flat = [pair for of_episode in answers for pair in of_episode]
    return Batch.of_tokens([request.token_ids for request, _ in flat], [answer.token_ids for _, answer in flat])


def sorted_logprobs(values: Tensor, batch: Batch) -> Tensor:
    return values[batch.loss_mask].sort().values


@pytest.mark.parametrize("arch", ["qwen3", "gpt2", "mamba"])
def test_each_answer_is_trained_once_with_the_probabilities_that_the_engine_gave_it(arch: str) -> None:
    policy, groups, answers = episodes(arch)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert {0, 4} == {rollout.counts["agents/forks"] for rollout in rollouts}
    for rollout, of_episode in zip(rollouts, answers, strict=True):
        sampled = sorted(answer.token_ids for _, answer in of_episode)
        turns = Batch.from_groups([replace(groups[0], rollouts=(rollout,))])
        trained = [
            tuple(turns.token_ids[0, turns.turn[0] == turn].tolist()) for turn in range(int(turns.turn.max()) + 1)
        ]
        assert sorted(trained) == sampled
        everything = sum(len(request.token_ids) + len(answer.token_ids) for request, answer in of_episode)
        assert len(rollout.token_ids) <= 0.7 * everything  # what conversations share is in the row once
    batch = Batch.from_groups(groups)
    scored = token_scores(policy.forward, batch).logprobs
    assert (scored - batch.rollout_logprobs)[batch.loss_mask].abs().max() <= 1e-5
    by_hand = rows_by_hand(answers)
    expected = token_scores(policy.forward, by_hand).logprobs
    torch.testing.assert_close(sorted_logprobs(scored, batch), sorted_logprobs(expected, by_hand), rtol=0, atol=1e-5)


@pytest.mark.parametrize("weight", [sequence_mean, token_mean, constant(length=100), prompt_mean])
def test_the_gradient_is_that_of_answers_by_hand_with_denominators_that_count_episodes(
    made: Made, weight: Weight
) -> None:
    _, groups, answers = made
    policy = double(fresh())
    batch = compute_advantages(per_token(group_standardised), Batch.from_groups(groups))
    rewards = torch.tensor([rollout.reward for group in groups for rollout in group.rollouts])
    of_episode = group_standardised(rewards, torch.arange(8) // 4)
    assert batch.totals.sequences == batch.totals.rows == 8
    counts = torch.tensor([sum(len(answer.token_ids) for _, answer in each) for each in answers]).double()
    share = {
        sequence_mean: 1 / (8 * counts),
        token_mean: (1 / counts.sum()).expand(8),
        prompt_mean: (1 / (2 * counts.view(2, 4).sum(1))).repeat_interleave(4),
    }.get(weight, torch.full((8,), 1 / 800, dtype=torch.float64))
    by_hand = rows_by_hand(answers)
    logprobs = policy.scores(by_hand).logprobs.sum(1)
    number = torch.tensor([place for place, each in enumerate(answers) for _ in each])
    (-(logprobs * (of_episode * share)[number]).sum()).backward()
    expected = torch.cat([each.grad.flatten().clone() for each in policy.model.parameters() if each.grad is not None])
    policy.model.zero_grad()
    objective = ComposedObjective(surrogate=clip(low=0.2, high=0.2), weight=weight)
    update, gradient = updated(policy, objective.prepare(batch), objective)
    assert (gradient - expected).norm() <= 1e-6 * expected.norm()  # rewards and advantages are float32
    loss = -(of_episode * share * counts).sum()  # every ratio is 1
    assert update.metrics["loss"] == pytest.approx(float(loss), abs=1e-6)


def test_micro_batches_count_what_a_model_reads_and_change_nothing(made: Made) -> None:
    policy, groups, _ = made
    batch = Batch.from_groups(groups)
    read = tokens_read(batch.attention_mask, batch.previous)
    forked = [bool(rollout.forks) for group in groups for rollout in group.rollouts]
    lengths = batch.attention_mask.sum(1).tolist()
    assert [one > other for one, other in zip(read, lengths, strict=True)] == forked
    for budget in range(max(read), 8 * max(read), 16):
        packed = batch.micro_batch_rows(budget, whole_groups=False)
        assert all(len(rows) * max(read[row] for row in rows) <= budget for rows in packed)
    whole = policy.measure(batch).logprobs
    policy.set_micro_batch_tokens(max(read))
    torch.testing.assert_close(policy.measure(batch).logprobs, whole, rtol=0, atol=1e-5)
    for row in batch.microbatches(1, whole_groups=False):
        assert int(policy.scores(row).logprobs.detach().ne(0).sum()) == int(row.loss_mask.sum())


def test_a_critic_reads_each_answer_after_its_own_conversation(made: Made) -> None:
    policy, groups, answers = made
    critic = own_model(policy)
    torch.nn.init.normal_(next(critic.head.parameters()))
    batch, by_hand = Batch.from_groups(groups), rows_by_hand(answers)
    values, expected = critic.values(batch), critic.values(by_hand)
    torch.testing.assert_close(sorted_logprobs(values, batch), sorted_logprobs(expected, by_hand), rtol=0, atol=1e-4)


def test_the_value_after_a_truncated_episode_is_that_after_its_first_conversation(made: Made) -> None:
    policy, groups, _ = made
    critic = own_model(policy)
    torch.nn.init.normal_(next(critic.head.parameters()))
    batch = Batch.from_groups(groups)
    ends = critic.end_values(batch.with_(truncated=torch.ones(len(batch), dtype=torch.bool)))
    forks = [[column for column, _ in rollout.forks] for group in groups for rollout in group.rollouts]
    firsts = [
        tuple(row[: min(of_row, default=length)])
        for row, of_row, length in zip(
            batch.token_ids.tolist(), forks, batch.attention_mask.sum(1).tolist(), strict=True
        )
    ]
    assert any(forks)
    alone = Batch.of_tokens([tokens[:-1] for tokens in firsts], [tokens[-1:] for tokens in firsts])
    expected = critic.end_values(alone.with_(truncated=torch.ones(len(alone), dtype=torch.bool)))
    torch.testing.assert_close(ends, expected, rtol=0, atol=1e-4)


def test_an_answer_that_is_sampled_twice_to_the_same_call_is_two_turns() -> None:
    async def twice(row: dict[str, Any], base_url: str, http_client: Any) -> float:
        for _ in range(2):
            await http_client.post(f"{base_url}/chat/completions", json={"messages": row["messages"]})
        return 1.0

    environment = agent(twice)
    (rollout,) = play(environment, ["the same", "the same"])
    prompt = question(environment.template)
    batch = Batch.from_groups([Group(prompt=prompt, rollouts=(rollout,))])
    assert int(batch.turn.max()) == 1
    assert batch.totals.tokens == 2 * (len("the same") + 1)
    (fork,) = rollout.forks
    assert fork == (len(prompt.token_ids) + len("the same") + 1, len(prompt.token_ids) - 2)


def test_the_routes_of_an_episode_are_those_of_its_conversations() -> None:
    async def forked(row: dict[str, Any], base_url: str, http_client: Any) -> float:
        for text in ("Go on, and say more.", "Else?"):
            messages = [*row["messages"], {"role": "user", "content": text}]
            await http_client.post(f"{base_url}/chat/completions", json={"messages": messages})
        return 1.0

    environment = agent(forked)
    tokenizer = environment.template.tokenizer
    answers = iter(([*tokenizer.encode("long"), tokenizer.eos_token_id], [tokenizer.eos_token_id]))

    def answered(request: Request) -> Completion:
        """An answer whose routes are the numbers of its tokens."""
        tokens = next(answers)
        return Completion(
            token_ids=tuple(tokens),
            logprobs=(-1.0,) * len(tokens),
            finish_reason=FinishReason.stop,
            policy_version=0,
            routes=torch.arange(len(request.token_ids) + len(tokens) - 1)[:, None, None],
        )

    prompts = [question(environment.template)]
    groups = environment.rollouts(ScriptedEngine(answered, tokenizer), prompts, 1, SAMPLING, step=1, purpose="train")
    rows, _ = conversations(Batch.from_groups(groups))
    assert len(rows) == 2
    assert rows.routes is not None
    for length, routes in zip(rows.attention_mask.sum(1).tolist(), rows.routes[:, :, 0, 0].tolist(), strict=True):
        assert routes[:length] == [*range(length - 1), -1]
