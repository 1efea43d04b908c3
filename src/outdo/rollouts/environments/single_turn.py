"""The simplest environment: one question, one answer, one reward."""

from collections import Counter
from collections.abc import Sequence

from outdo.rewards.failures import check_failures
from outdo.rewards.types import Reward, RewardInput, RewardOutput
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Group, Prompt, Request, Rollout
from outdo.utils.rng import Stream
from outdo.utils.timing import span


class SingleTurn:
    """Asks each question n times and has `reward` read the answers.

    A reward that fails, hangs or gives no number leaves its rollout out of training; if that happens to more than
    `max_failed` of a call's rollouts, `RewardError` shows the first. A further call (see `Environment`) is judged
    together with the one it belongs to: it may be of a single question, and that one broken.
    """

    def __init__(self, reward: Reward, *, max_failed: float = 0.5) -> None:
        self.reward = reward
        self.max_failed = max_failed
        self._scored: list[RewardOutput] = []  # by the last call and its further ones
        self._answered: list[RewardInput] = []

    def rollouts(
        self, engine: Engine, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, *, step: int, purpose: str
    ) -> list[Group]:
        """`n` rollouts of each prompt, those of a prompt next to each other for the engine to share it.

        A prompt that stands in `prompts` twice is asked 2n times: no random number is used again.
        """
        before: Counter[str] = Counter()
        asked: list[tuple[Prompt, int]] = []
        for prompt in prompts:
            asked += [(prompt, before[prompt.id] + sample) for sample in range(n)]
            before[prompt.id] += n
        requests = [
            Request(
                token_ids=prompt.token_ids,
                stream=Stream(purpose, step, prompt.id, sample),
                max_tokens=sampling.max_tokens,
            )
            for prompt, sample in asked
        ]
        with span("sample"):
            completions = engine.generate(requests, sampling)
        with span("reward"):
            answered = [
                RewardInput(
                    prompt=prompt.text if isinstance(prompt.text, str) else [dict(message) for message in prompt.text],
                    completion=engine.decode(completion.token_ids),
                    answer=prompt.answer,
                    columns=prompt.columns,
                    completion_ids=completion.token_ids,
                )
                for (prompt, _), completion in zip(asked, completions, strict=True)
            ]
            scored = self.reward(answered)
        self._check_failures(scored, answered, further="/" in purpose)
        rollouts = [
            _rollout(completion, each.completion, verdict, sampling.temperature or 1.0)
            for completion, each, verdict in zip(completions, answered, scored, strict=True)
        ]
        return [
            Group(prompt=prompt, rollouts=tuple(rollouts[number * n : (number + 1) * n]))
            for number, prompt in enumerate(prompts)
        ]

    def _check_failures(self, scored: list[RewardOutput], answered: list[RewardInput], *, further: bool) -> None:
        self._scored = self._scored + scored if further else scored
        self._answered = self._answered + answered if further else answered
        check_failures(self._scored, self._answered, self.max_failed)


def _rollout(completion: Completion, text: str, scored: RewardOutput, temperature: float) -> Rollout:
    return Rollout(
        token_ids=completion.token_ids,
        loss_mask=(True,) * len(completion.token_ids),
        logprobs=completion.logprobs,
        text=text,
        reward=scored.value,
        verdict=str(scored.verdict),
        reward_parts=scored.parts,
        finish_reason=completion.finish_reason,
        policy_version=completion.policy_version,
        temperature=temperature,
    )
