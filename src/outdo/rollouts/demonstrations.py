"""Answers of the data in place of sampled ones: what distillation learns from off-policy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy

from outdo.models.scorer import BatchSizes, Scorer
from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.wrapped import WrappedEngine
from outdo.rollouts.environments.base import GroupSampler
from outdo.types import Batch, Completion, FinishReason, Group, Prompt, Request, Sampled
from outdo.utils.rng import Stream, stream_key, uniforms

AnswerOf = Callable[[Prompt], tuple[int, ...] | None]
"""Return the token ids of a question's demonstration, up to the one that ends an answer; None if it has none."""


class WithDemonstrations:
    """Samples groups of answers, and takes for a share of the questions the one answer that the data have.

    Each question is demonstrated with the probability `share`: 1 - λ of GKD (arXiv 2306.13649, algorithm 1), which
    decides so for a whole batch. One without a demonstration, or with one of more than `sampling.max_tokens`, is
    sampled. The rewards score demonstrations, too, but no metric of the policy's answers counts them. Their `logprobs`
    are the policy's.
    """

    def __init__(self, sampler: GroupSampler, answer_of: AnswerOf, *, share: float, seed: int) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, not {share}")
        self.sampler = sampler
        self.answer_of = answer_of
        self.share = share
        self.seed = seed

    @property
    def engine(self) -> Engine:
        """What samples the other answers."""
        return self.sampler.engine

    def __call__(self, policy: PolicyView, questions: Sequence[Prompt], *, step: int) -> Sampled:
        """Return a group for each question, in their order. The metric is the share that was demonstrated."""
        answers = {prompt.id: self._demonstration(prompt, step) for prompt in questions}
        shown = {name: answer for name, answer in answers.items() if answer is not None}
        sampled = [prompt for prompt in questions if prompt.id not in shown]
        demonstrated = [prompt for prompt in questions if prompt.id in shown]
        by_policy = iter(self.sampler(policy, sampled, step=step) if sampled else [])
        by_data = iter(self._demonstrated(policy, demonstrated, shown, step) if demonstrated else [])
        groups = [next(by_data if prompt.id in shown else by_policy) for prompt in questions]
        return Sampled(groups=groups, metrics={"demonstrations/ratio": len(demonstrated) / len(questions)})

    def _demonstration(self, prompt: Prompt, step: int) -> tuple[int, ...] | None:
        """Return the answer to learn from; None where the policy has to answer."""
        key = stream_key(self.seed, Stream("demonstration", step, prompt.id, 0))
        if uniforms(numpy.array([key], numpy.uint64), numpy.zeros(1, numpy.uint64))[0] >= self.share:
            return None
        answer = self.answer_of(prompt)
        return answer if answer and len(answer) <= self.sampler.sampling.max_tokens else None

    def _demonstrated(
        self, policy: PolicyView, prompts: Sequence[Prompt], answers: Mapping[str, tuple[int, ...]], step: int
    ) -> list[Group]:
        """Return a group of one rollout for each prompt, scored by the environment of the other answers."""
        engine = DemonstratingEngine(self.engine, policy, answers)
        environment, sampling = self.sampler.environment, self.sampler.sampling
        groups = environment.rollouts(engine, prompts, 1, sampling, step=step, purpose="demonstration")
        return [replace(group, demonstrated=True) for group in groups]


class DemonstratingEngine(WrappedEngine):
    """Returns the demonstration of each question as its completion, with the policy's log-probabilities."""

    def __init__(self, engine: Engine, policy: PolicyView, answers: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(engine)
        self.policy = policy
        self.answers = answers  # token ids by the id of the question

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return the completion of each request."""
        answers = [self.answers[request.stream.prompt_id] for request in requests]
        logprobs = self._logprobs(requests, answers, sampling.temperature)
        return [
            Completion(
                token_ids=answer,
                logprobs=tuple(of_answer),
                finish_reason=FinishReason.stop,
                policy_version=self.policy.version,
            )
            for answer, of_answer in zip(answers, logprobs, strict=True)
        ]

    def _logprobs(
        self, requests: Sequence[Request], answers: Sequence[tuple[int, ...]], temperature: float
    ) -> list[list[float]]:
        """Return the log-probability of each token of each answer at the temperature of the sampling."""
        inputs = [request.inputs for request in requests]
        batch = Batch.of_tokens(
            [request.token_ids for request in requests],
            answers,
            temperature=[temperature] * len(answers),
            inputs=inputs if any(inputs) else (),
        )
        logprobs = Scorer(self.policy.forward, BatchSizes()).logprobs(batch)
        return [row[mask].tolist() for row, mask in zip(logprobs, batch.loss_mask, strict=True)]
