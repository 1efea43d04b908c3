"""The simplest environment: one question, one answer, one reward."""

import math
from collections import Counter
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from outdo.models.completion_text import completion_text, rendered_text
from outdo.rewards.in_process import RewardLike, as_reward
from outdo.rewards.types import FailureCount, RewardInput, RewardOutput, reward_input
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import Environment, check_completions
from outdo.types import Completion, Group, Prompt, Request, Rollout
from outdo.utils.rng import Stream
from outdo.utils.timing import span


class SingleTurn(Environment):
    """Samples n answers to each question and scores them by `reward`, which may be a plain function.

    If a reward fails, hangs or is no number, its rollout is not trained on. If that happens to more than the share
    `max_failed` of a step's rollouts, `RewardError` shows the first. After `step_timeout` seconds the remaining
    rewards of a step have timed out.
    """

    def __init__(self, reward: RewardLike, *, max_failed: float = 0.5, step_timeout: float | None = None) -> None:
        self.reward = as_reward(reward)
        self.max_failed = max_failed
        self.step_timeout = math.inf if step_timeout is None else step_timeout

    def requests(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, *, step: int, purpose: str
    ) -> list[Request]:
        """Return the requests for `n` answers to each prompt.

        The requests of a prompt are neighbours, so that the engine prefills it once. A prompt that is in `prompts`
        twice gets 2n different samples: no random number is used twice.
        """
        samples_before: Counter[str] = Counter()
        requests: list[Request] = []
        for prompt in prompts:
            first = samples_before[prompt.id]
            requests += [
                Request(
                    token_ids=prompt.token_ids,
                    stream=Stream(purpose, step, prompt.id, sample),
                    max_tokens=sampling.max_tokens,
                    inputs=prompt.inputs,
                )
                for sample in range(first, first + n)
            ]
            samples_before[prompt.id] += n
        return requests

    def rollouts(
        self,
        engine: Engine,
        prompts: Sequence[Prompt],
        n: int,
        sampling: SamplingParams,
        *,
        step: int,
        purpose: str,
        failures: FailureCount | None = None,
    ) -> list[Group]:
        """Return `n` rollouts of each prompt, sampled by `requests`."""
        requests = self.requests(prompts, n, sampling, step=step, purpose=purpose)
        with span("sample"):
            completions = engine.generate(requests, sampling)
        check_completions(requests, completions)
        with span("reward"):
            inputs = _reward_inputs(engine.tokenizer, prompts, n, completions)
            failures = failures or FailureCount()
            with failures.within(self.step_timeout):
                outputs = self.reward(inputs)
        failures.check(outputs, inputs, self.max_failed)
        rollouts = [
            _to_rollout(completion, scored, output, sampling.temperature or 1.0)
            for completion, scored, output in zip(completions, inputs, outputs, strict=True)
        ]
        return [
            Group(prompt=prompt, rollouts=tuple(rollouts[index * n : (index + 1) * n]))
            for index, prompt in enumerate(prompts)
        ]


def _reward_inputs(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], n: int, completions: Sequence[Completion]
) -> list[RewardInput]:
    """Return what a reward sees of the `n` completions of each prompt."""
    read = [pair for prompt in prompts for pair in [(prompt, rendered_text(tokenizer, prompt.token_ids))] * n]
    return [
        reward_input(
            prompt,
            completion_text(tokenizer, completion.token_ids),
            completion.token_ids,
            rendered_prompt=rendered,
        )
        for (prompt, rendered), completion in zip(read, completions, strict=True)
    ]


def _to_rollout(completion: Completion, scored: RewardInput, output: RewardOutput, temperature: float) -> Rollout:
    return Rollout(
        token_ids=completion.token_ids,
        loss_mask=(True,) * len(completion.token_ids),
        logprobs=completion.logprobs,
        text=scored.completion,
        prefill=scored.prefill,
        reward=output.value,
        right=output.right,
        status=str(output.status),
        reward_parts=output.parts,
        finish_reason=completion.finish_reason,
        policy_version=completion.policy_version,
        versions=completion.versions,
        routes=completion.routes,
        temperature=temperature,
    )
