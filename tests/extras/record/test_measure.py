"""What answers lose without a word of their question, compared with the log-probabilities of whole sequences."""

import math
from collections.abc import Sequence

import pytest

from outdo.extras.record.reading import measure
from outdo.extras.record.reading.measure import Reading
from outdo.models.policy import Policy
from outdo.models.prompt_encoding import encode_prompt
from outdo.models.scorer import sequence_logprobs
from outdo.testing import tiny_model
from outdo.types import FinishReason, Group, Prompt, Rollout

LOSSES = ("lost", "ratio")
TEXTS = ["say cat now", "say dog now", "say pig now"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder)
    return Policy.load(folder, device="cpu")


@pytest.fixture
def reading(policy: Policy) -> Reading:
    return Reading(policy, lambda prompt, text: encode_prompt(policy.tokenizer, text), TEXTS, max_tokens=8)


def group(policy: Policy, text: str, answers: Sequence[str], *, masks: bool = True) -> Group:
    def rollout(answer: str) -> Rollout:
        ids = tuple(policy.tokenizer.encode(answer, add_special_tokens=False))
        mask = tuple(masks and place != 1 for place in range(len(ids)))  # the second token is not the policy's
        return Rollout(
            token_ids=ids,
            loss_mask=mask,
            logprobs=(0.0,) * len(ids),
            text=answer,
            reward=0.0,
            finish_reason=FinishReason.stop,
            policy_version=0,
        )

    prompt = Prompt(id=text, text=text, token_ids=tuple(encode_prompt(policy.tokenizer, text)))
    return Group(prompt=prompt, rollouts=tuple(map(rollout, answers)))


def logprob(policy: Policy, prompt: str, answer: str) -> float:
    """The sum over the sampled tokens, from whole sequences."""
    before, after = (policy.tokenizer.encode(each, add_special_tokens=False) for each in (prompt, answer))
    (values,) = sequence_logprobs(policy.forward, [[*before, *after]])
    return math.fsum(value for place, value in enumerate(values[len(before) - 1 :]) if place != 1)


def test_what_an_answer_loses_is_the_difference_of_its_log_probabilities(policy: Policy, reading: Reading) -> None:
    answers = ["miaow", "a cat, now"]
    (found,) = reading.measure([group(policy, "say cat now", answers)])
    (read,) = found.reads
    lost = [logprob(policy, "say cat now", each) - logprob(policy, "say dog now", each) for each in answers]
    assert (read.swap.other, found.answers) == ("dog", 2)
    assert read.lost == pytest.approx(math.fsum(lost) / 2, abs=1e-4)
    assert abs(read.lost) > 0.1


def test_metrics_are_means_over_words_and_over_the_places_that_most_questions_have(
    policy: Policy, reading: Reading
) -> None:
    found = reading.measure([group(policy, text, ["miaow"]) for text in TEXTS[:2]])
    metrics = reading.metrics(found)
    mean, ratio = (math.fsum(getattr(read, what) for each in found for read in each.reads) / 2 for what in LOSSES)
    means = {"reads/mean": mean, "reads/say _ now": mean, "reads/questions": 2.0}
    assert metrics == pytest.approx(means | {"reads_ratio/mean": ratio, "reads_ratio/say _ now": ratio})


def test_an_answer_reads_a_word_without_which_it_loses_a_nat(
    policy: Policy, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ["miaow", "a cat, now", "woof"]
    lost = [logprob(policy, "say cat now", each) - logprob(policy, "say dog now", each) for each in answers]
    for bound in (min(lost) - 0.01, sorted(lost)[1] - 0.01, max(lost) + 0.01):
        monkeypatch.setattr(measure, "IS_READ", bound)
        (found,) = reading.measure([group(policy, "say cat now", answers)])
        assert found.reads[0].ratio == pytest.approx(sum(each >= bound for each in lost) / 3)


@pytest.mark.parametrize(
    ("questions", "answers", "max_tokens", "measured"),
    [(4, 8, 32, [3] * 4), (16, 8, 32, [1] * 8), (1, 8, 32, [8]), (3, 1, 32, [1, 1]), (16, 4, 1, [4, 4])],
)
def test_a_step_costs_two_groups_and_is_asked_as_many_questions_whatever_is_answered(
    policy: Policy, questions: int, answers: int, max_tokens: int, measured: list[int]
) -> None:
    reading = Reading(policy, lambda prompt, text: prompt.token_ids, TEXTS, max_tokens=max_tokens)
    for answer in ("a", "a cat, now a cat"):
        groups = [group(policy, "say cat now", [answer] * answers) for _ in range(questions)]
        assert [each.answers for each in reading.of_step(groups)] == measured
        prompt = len(groups[0].prompt.token_ids)
        cost = sum(prompt + each * max_tokens for each in measured)
        assert cost <= 2 * (prompt + answers * max_tokens)


def test_questions_and_answers_that_cannot_be_measured_are_left_out(policy: Policy, reading: Reading) -> None:
    alone = Reading(policy, reading.encode, [TEXTS[0]], max_tokens=8)
    assert alone.measure([group(policy, TEXTS[0], ["miaow"])]) == []
    assert reading.measure([group(policy, TEXTS[0], ["miaow"], masks=False)]) == []
    long = "m" * (policy.context or 0)
    assert reading.measure([group(policy, TEXTS[0], [long])]) == []
    other = Reading(policy, lambda prompt, text: [1, 2, 3], TEXTS, max_tokens=8)  # as an environment that writes them
    assert other.measure([group(policy, TEXTS[0], ["miaow"])]) == []
    assert reading.metrics([]) == {}
