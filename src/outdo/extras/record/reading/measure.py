"""Measure what answers read: the log-probability that they lose when a word of their question is replaced.

    lost(w) = log π(answer | question) - log π(answer | question with another word in the place of w)

in nats, summed over the tokens of the answer that the policy sampled. An answer that does not depend on a word loses
nothing. What is asked for with another word is another question: an answer to it has no reason to be likely.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from outdo.extras.record.reading.swaps import Swap, Text, named_places, question_of, swaps, with_question
from outdo.models.policy import Policy
from outdo.types import Batch, Group, Prompt, Rollout

Encode = Callable[[Prompt, Text], Sequence[int]]
"""Returns the token ids of a prompt whose text is another one."""

GROUPS = 2
"""So many whole groups of a step have as many tokens as what is measured of it."""
QUESTIONS_OF_STEP = 8
"""Questions of a step that are measured, at most."""
QUESTIONS = 24
"""Held-out questions that are measured, with one answer to each."""


IS_READ = 1.0
"""Nats that an answer loses at least if it reads a word: it is then e times as likely, or more, with this word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What the answers to a question lose without one of its words."""

    swap: Swap
    lost: float  # nats, the mean over the answers
    ratio: float  # the share of the answers that lose `IS_READ` or more


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRead:
    """What the answers to a question read of it."""

    id: str
    question: str
    answers: int
    reads: Sequence[Read]

    def line(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        reads = [{**asdict(read.swap), "lost": read.lost, "ratio": read.ratio} for read in self.reads]
        return {"id": self.id, "question": self.question, "answers": self.answers, "reads": reads}


class Reading:
    """Measures what answers read, with the policy as it is.

    `questions` are some of the run, from which the other words are taken, and `max_tokens` is the length of an answer
    at most. It takes a forward pass over the answers for each word that is replaced, and one without.
    """

    def __init__(self, policy: Policy, encode: Encode, questions: Sequence[Text], *, max_tokens: int) -> None:
        self.policy = policy
        self.max_tokens = max_tokens
        self.encode = encode
        self.questions = [question for prompt in questions if (question := question_of(prompt))]

    @cached_property
    def places(self) -> list[str]:
        """The places of the run's questions that have a metric of their own."""
        return named_places(self.questions)

    def of_step(self, groups: Sequence[Group]) -> list[QuestionRead]:
        """Measure some answers to the first questions of a step: as many questions as `GROUPS` whole groups cost.

        Answers to one question are alike, so that one answer to each of many questions says more. Each question costs
        its prompt, though. With the longest answers in the place of those that there are, a policy whose answers become
        short is asked as many questions as before.
        """
        answered = [group for group in groups if group.rollouts]
        if not answered:
            return []
        prompt = max(len(group.prompt.token_ids) for group in answered)
        most = GROUPS * (prompt + max(len(group.rollouts) for group in answered) * self.max_tokens)
        questions = min(len(answered), QUESTIONS_OF_STEP, max(GROUPS, most // (prompt + self.max_tokens)))
        answers = max(1, (most // questions - prompt) // self.max_tokens)
        return self.measure(answered[:questions], answers=answers)

    def of_evaluation(self, groups: Sequence[Group]) -> list[QuestionRead]:
        """Measure the first answer to each of the first held-out questions."""
        return self.measure(groups[:QUESTIONS], answers=1)

    def measure(self, groups: Sequence[Group], *, answers: int | None = None) -> list[QuestionRead]:
        """Measure the answers to some questions, at most so many to each; without questions that nothing is read of.

        Left out are questions without a word to replace, answers without a sampled token, episodes of several
        conversations, and what would be longer than the model's context.
        """
        cases = [case for group in groups if (case := self._case(group, answers))]
        if not cases:
            return []
        batch = _batch(cases)
        sums = (self.policy.logprobs(batch) * batch.loss_mask).sum(1).tolist()  # [B]
        rows = iter(sums)
        return [_question_read(case, rows) for case in cases]

    def metrics(self, questions: Sequence[QuestionRead]) -> dict[str, float]:
        """Return what answers lose without a word, `reads/mean` and `reads/PLACE`, and which share of them loses it.

        The shares are `reads_ratio/mean` and `reads_ratio/PLACE`; `reads/questions` is the number of questions.
        """
        reads: defaultdict[str, list[Read]] = defaultdict(list)
        for read in (read for question in questions for read in question.reads):
            reads["mean"].append(read)
            if read.swap.place in self.places:
                reads[read.swap.place].append(read)
        means = {f"reads/{name}": fmean(read.lost for read in values) for name, values in reads.items()}
        shares = {f"reads_ratio/{name}": fmean(read.ratio for read in values) for name, values in reads.items()}
        return means | shares | ({"reads/questions": float(len(questions))} if questions else {})

    def _case(self, group: Group, answers: int | None) -> "_Case | None":
        prompt = group.prompt
        question = question_of(prompt.text)
        rollouts = [rollout for rollout in group.rollouts if any(rollout.loss_mask) and not rollout.forks][:answers]
        # An environment may write its prompts in another way: then another question cannot be put into them.
        if not question or not rollouts or tuple(self.encode(prompt, prompt.text)) != prompt.token_ids:
            return None
        longest = math.inf if self.policy.context is None else self.policy.context
        longest -= max(len(rollout.token_ids) for rollout in rollouts)
        fitting = [
            (swap, tuple(self.encode(prompt, with_question(prompt.text, swap.of(question)))))
            for swap in swaps(question, [other for other in self.questions if other != question])
        ]
        fitting = [(swap, ids) for swap, ids in fitting if len(ids) <= longest]
        return _Case(prompt, question, rollouts, fitting) if fitting else None


@dataclass(frozen=True, slots=True)
class _Case:
    """A question, some answers to it, and its prompt with each of the other words."""

    prompt: Prompt
    question: str
    rollouts: Sequence[Rollout]
    swapped: Sequence[tuple[Swap, tuple[int, ...]]]

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """The prompt as it is, and with each of the other words."""
        return [self.prompt.token_ids, *(ids for _, ids in self.swapped)]


def _batch(cases: Sequence[_Case]) -> Batch:
    """Return the answers of each question after each of its prompts; those after one prompt are a group."""
    prompts = [(prompt, case) for case in cases for prompt in case.prompts]
    rows = [(number, rollout) for number, (_, case) in enumerate(prompts) for rollout in case.rollouts]
    return Batch.of_tokens(
        [prompts[number][0] for number, _ in rows],
        [rollout.token_ids for _, rollout in rows],
        masks=[rollout.loss_mask for _, rollout in rows],
        group=[number for number, _ in rows],
        temperature=[rollout.temperature for _, rollout in rows],
        inputs=[prompts[number][1].prompt.inputs for number, _ in rows],
    )


def _question_read(case: _Case, sums: Iterator[float]) -> QuestionRead:
    """Take the log-probabilities of the answers of a case, prompt by prompt."""
    whole, *others = [[next(sums) for _ in case.rollouts] for _ in case.prompts]  # [answers], by prompt
    reads: list[Read] = []
    for (swap, _), other in zip(case.swapped, others, strict=True):
        lost = [before - without for before, without in zip(whole, other, strict=True)]
        reads.append(Read(swap=swap, lost=fmean(lost), ratio=fmean(nats >= IS_READ for nats in lost)))
    return QuestionRead(id=case.prompt.id, question=case.question, answers=len(case.rollouts), reads=reads)
