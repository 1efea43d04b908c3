"""The reward `judge`: its options, and rewards from the verdicts of another model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from outdo.extras.judge.client import ChatClient, NoVerdictError
from outdo.extras.judge.limits import JudgeLimits
from outdo.extras.judge.questions import JudgeQuestion, ask_better, ask_score, ask_scores
from outdo.extras.judge.replies import FILE
from outdo.rewards.base import Reward
from outdo.rewards.context import RewardContext
from outdo.rewards.options import Compare
from outdo.rewards.types import DEADLINE, RewardInput, RewardOutput, output_without_value, to_output
from outdo.utils.errors import UserError

REQUEST = {"temperature": 0, "max_tokens": 1024}
"""The fields of a request, besides the model and the messages, where the option `request` does not set others."""

Verdict = float | NoVerdictError
Scored = Verdict | None
"""The reward of an answer, why there is none, or None where it does not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a judge costs, for a million tokens."""

    input: float = 0.0
    output: float = 0.0


class Judge(Reward):
    """A reward from 0 to 1 by the verdicts of another model; see `judge`.

    An answer without a verdict has failed; it never gets 0 for it.
    """

    name = "judge"
    is_paid = True

    def __init__(
        self,
        client: ChatClient,
        *,
        rubric: str,
        compare: Compare = "none",
        opponents: int = 0,
        scale: float = 10.0,
        reference: bool = True,
        price: Price | None = None,
    ) -> None:
        self.client = client
        self.rubric = rubric
        self.compare: Compare = compare
        self.opponents = opponents
        self.scale = scale
        self.reference = reference
        self.price = price

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Judge every completion. Those of one question are compared with each other, unless `compare` is none."""
        score = {"none": self._each_alone, "pairs": self._in_pairs, "group": self._in_groups}[self.compare]
        return [self._output(result) for result in score(inputs)]

    def metrics(self) -> dict[str, float]:
        """Return what was asked since the last call of this method, and what everything has cost so far.

        `cost` and `total_cost` are there if there is a price; the total includes what the file of replies holds from
        before this process.
        """
        counts, total = self.client.counts, self.client.replies.tokens()
        self.client.counts = type(counts)()
        names = ("requests", "cached", "repeated", "input_tokens", "output_tokens")
        metrics = {name: float(counts[name]) for name in names}
        if self.price is not None:
            metrics["cost"] = self._cost(counts["input_tokens"], counts["output_tokens"])
            metrics["total_cost"] = self._cost(*total)
        return metrics

    def close(self) -> None:
        """Close the connection to the endpoint."""
        self.client.close()

    def _cost(self, input_tokens: int, output_tokens: int) -> float:
        assert self.price is not None
        return (input_tokens * self.price.input + output_tokens * self.price.output) / 1e6

    def _output(self, scored: Scored) -> RewardOutput:
        if isinstance(scored, NoVerdictError):
            return output_without_value(scored.status, str(scored), self.name)
        return to_output(scored, self.name)

    def _each_alone(self, inputs: Sequence[RewardInput]) -> list[Verdict]:
        ask = partial(ask_score, rubric=self.rubric, scale=self.scale, reference=self.reference)
        return self._ask([ask(answer) for answer in inputs])

    def _in_pairs(self, inputs: Sequence[RewardInput]) -> list[Scored]:
        """Return the share of comparisons that each answer wins: a tie is half, and equal answers are a tie."""
        pairs = [pair for group in _groups(inputs) for pair in _pairs(group, self.opponents)]
        won = self._won(inputs, [(one, other) for one, other in pairs if not _equal(inputs[one], inputs[other])])
        by_place: list[tuple[int, Verdict]] = []
        for one, other in pairs:
            share = won.get((one, other), 0.5)
            by_place += [(one, share), (other, share if isinstance(share, NoVerdictError) else 1 - share)]
        return _means(len(inputs), by_place)

    def _won(self, inputs: Sequence[RewardInput], pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Verdict]:
        """Return what the first answer of each pair gets: 1, 0 or 0.5.

        Each pair is asked in both orders, because judges prefer a place: if the verdicts differ, it is a tie.
        """
        orders = [*pairs, *((other, one) for one, other in pairs)]
        verdicts = self._ask(
            [ask_better(inputs[one], inputs[other], self.rubric, reference=self.reference) for one, other in orders]
        )
        both = zip(verdicts[: len(pairs)], verdicts[len(pairs) :], strict=True)
        return {pair: _of_both_orders(there, back) for pair, (there, back) in zip(pairs, both, strict=True)}

    def _in_groups(self, inputs: Sequence[RewardInput]) -> list[Scored]:
        """Return the mean score of each answer in two orders of its group, the second one backwards.

        An answer without others is judged alone.
        """
        groups = _groups(inputs)
        orders = [order for group in groups if len(group) > 1 for order in (group, group[::-1])]
        alone = [group[0] for group in groups if len(group) == 1]
        verdicts = self._ask(
            [
                ask_scores([inputs[n] for n in order], self.rubric, scale=self.scale, reference=self.reference)
                for order in orders
            ]
        )
        by_place: list[tuple[int, Verdict]] = [*zip(alone, self._each_alone([inputs[i] for i in alone]), strict=True)]
        for order, verdict in zip(orders, verdicts, strict=True):
            scores = [verdict] * len(order) if isinstance(verdict, NoVerdictError) else verdict
            by_place += zip(order, scores, strict=True)
        return _means(len(inputs), by_place)

    def _ask(self, questions: Sequence[JudgeQuestion[Any]]) -> list[Any]:
        return self.client.ask_all(questions, deadline=DEADLINE.get())


def _groups(inputs: Sequence[RewardInput]) -> list[list[int]]:
    """Return the places of the answers to the same question, for each question."""
    groups: dict[str, list[int]] = {}
    for n, answer in enumerate(inputs):
        groups.setdefault(repr((answer.prompt, answer.answer, dict(answer.columns))), []).append(n)
    return list(groups.values())


def _pairs(group: Sequence[int], opponents: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of a group in which each answer meets at least so many others; 0: all."""
    count, reach = len(group), (opponents + 1) // 2
    for one, other in combinations(range(count), 2):
        if not opponents or min(other - one, count + one - other) <= reach:
            yield group[one], group[other]


def _equal(one: RewardInput, other: RewardInput) -> bool:
    return (one.completion, one.messages) == (other.completion, other.messages)


def _of_both_orders(there: Verdict, back: Verdict) -> Verdict:
    if isinstance(there, NoVerdictError):
        return there
    return back if isinstance(back, NoVerdictError) else (there + 1 - back) / 2


def _means(count: int, by_place: Sequence[tuple[int, Verdict]]) -> list[Scored]:
    """Return the mean verdict for each of `count` answers; None where there is none.

    One verdict that is missing is missing in the mean, which would be one of other questions.
    """
    verdicts: list[list[Verdict]] = [[] for _ in range(count)]
    for n, verdict in by_place:
        verdicts[n].append(verdict)
    return [_mean(of_answer) if of_answer else None for of_answer in verdicts]


def _mean(verdicts: Sequence[Verdict]) -> Verdict:
    values = [verdict for verdict in verdicts if not isinstance(verdict, NoVerdictError)]
    missing = next((verdict for verdict in verdicts if isinstance(verdict, NoVerdictError)), None)
    return sum(values) / len(values) if missing is None else missing


def judge(
    context: RewardContext,
    *,
    url: str,
    model: str,
    rubric: str,
    api_key: str = "",
    compare: Compare = "none",
    opponents: int = 0,
    scale: float = 10.0,
    reference: bool = True,
    request: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    price: Mapping[str, Any] | None = None,
    cache: str | None = None,
) -> Judge:
    """Return the reward by which another model judges answers.

    Args:
        context: with the folder of the run, if there is one.
        url: the OpenAI-compatible endpoint, up to `/v1`.
        model: the judge's name at the endpoint.
        rubric: the criteria, as text.
        api_key: its place, as `{env = "NAME"}` or `{file = "path"}`; empty: the endpoint needs none.
        compare: none judges each answer alone, from 0 to `scale`; pairs compares the answers to a question two at a
            time; group shows all of them at once. Pairs and groups are asked in two orders.
        opponents: with pairs, how many others each answer meets at least; 0: all.
        scale: the best score. Rewards are from 0 to 1 whatever the scale.
        reference: whether the judge sees the reference answer, where a row has one.
        request: further fields of each request; unset: `REQUEST`.
        limits: a table with the fields of `JudgeLimits`.
        price: a table with the price of a million tokens, `input` and `output`.
        cache: the file of replies; unset: `judge.jsonl` in the folder of the run, else none.

    Raises: UserError for a key that is not ASCII; `outdo.rewards.options` checks all other options.
    """
    if not api_key.isascii():
        raise UserError(["rewards.judge.api_key: expected text of ASCII characters"])
    replies = context.folder / FILE if context.folder else None
    client = ChatClient(
        url=url,
        model=model,
        api_key=api_key,
        request=REQUEST if request is None else request,
        limits=JudgeLimits(**(limits or {})),
        cache=replies if cache is None else Path(cache),
    )
    return Judge(
        client,
        rubric=rubric,
        compare=compare,
        opponents=opponents,
        scale=float(scale),
        reference=reference,
        price=None if price is None else Price(**price),
    )
