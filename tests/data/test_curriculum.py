"""Curricula: when a level ends, what counts for it, and what a checkpoint holds."""

import json

import pytest
from toys import rollout

from outdo.data.batches import Mixture
from outdo.data.curriculum import Curriculum
from outdo.types import Group, Prompt
from outdo.utils.errors import RewardError

LEVELS = {level: [Prompt(id=f"level {level}:{n}", text="", token_ids=(5,)) for n in range(6)] for level in (0, 2, 5)}


def curriculum(**how) -> Curriculum:
    return Curriculum(LEVELS, **{"window": 3, "threshold": 0.75, "per_step": 2, **how})


def answered(prompt: Prompt, *right: bool | None, **fields) -> Group:
    return Group(prompt=prompt, rollouts=tuple(rollout(right=each, **fields) for each in right))


def level_of(prompt: Prompt) -> int:
    return int(prompt.id.split()[1].partition(":")[0])


def test_a_level_ends_when_enough_of_its_last_answers_are_right():
    questions = curriculum()
    first, second, third, fourth = questions.take(4)
    questions.observe([answered(first, True, True), answered(second, False, True)])
    assert (questions.level, questions.shares) == (0, [1.0, 0.5])  # the window is not full
    questions.observe([answered(third, False, True)])
    assert questions.level == 0  # 2/3 of the last three
    questions.observe([answered(fourth, True, True, True, False)])
    assert (questions.level, questions.shares) == (0, [0.5, 0.5, 0.75])
    questions.observe([answered(prompt, True) for prompt in questions.take(2)])
    assert (questions.level, questions.shares) == (2, [])  # the first of both was enough; the second counts no longer
    assert {level_of(prompt) for prompt in questions.take(6)} == {2}


def test_answers_to_an_earlier_level_and_answers_without_a_reward_do_not_count():
    questions = curriculum(window=1)
    early = questions.take(2)
    questions.observe([answered(early[0], True)])
    assert questions.level == 2
    questions.observe([answered(early[1], True)])  # it was sampled before the level had ended
    questions.observe([answered(questions.take(1)[0], None, status="failed")])
    assert (questions.level, questions.shares) == (2, [])


def test_the_last_level_does_not_end():
    questions = curriculum(window=1, threshold=0.5)
    taken = [questions.take(1) for _ in range(8) if questions.observe([answered(questions.take(1)[0], True)]) is None]
    assert [level_of(prompt) for (prompt,) in taken] == [2, *[5] * 7]


def test_a_reward_that_does_not_tell_what_is_right_ends_the_run_with_a_sentence():
    questions = curriculum()
    with pytest.raises(RewardError, match="a curriculum counts right answers, and no reward tells what is right"):
        questions.observe([answered(questions.take(1)[0], None)])


@pytest.mark.parametrize("step", [0, 1, 3, 5])
def test_a_curriculum_among_other_sources_continues_exactly_where_it_was_saved(step: int):
    def mixed() -> Mixture[Prompt]:
        others = [Prompt(id=f"other {n}", text="", token_ids=(6,)) for n in range(5)]
        return Mixture([curriculum(number="1"), others], [3.0, 1.0], per_step=4)

    def steps(questions: Mixture[Prompt], count: int) -> list[list[str]]:
        taken = []
        for _ in range(count):
            batch = questions.take(4)
            questions.observe([answered(prompt, True) for prompt in batch])
            taken.append([prompt.id for prompt in batch])
        return taken

    whole, first, second = mixed(), mixed(), mixed()
    expected = steps(whole, step + 4)
    steps(first, step)
    second.load_state(json.loads(json.dumps(first.state())))
    assert steps(second, 4) == expected[step:]
    assert expected[-1] != expected[0]


def test_the_level_of_a_step_is_that_of_its_questions():
    questions = curriculum(window=1)
    batch = questions.take(2)
    questions.observe([answered(batch[0], True)])
    assert questions.metrics([*batch, *questions.take(2)]) == {"data/level": 1.0}
    assert curriculum(number="2").metrics(batch) == {"data/level/2": 0.0}
    assert questions.metrics([Prompt(id="other", text="", token_ids=(1,))]) == {}
