"""What a matcher reads beside its verdict: the vote over answers, and references that no answer can match."""

import pytest

from outdo.rewards import BUILTIN, InProcessReward, WeightedSum, load_reward, right
from outdo.rewards.matchers import MATCHERS, majorities, matcher_of, matchers_in, reference_checks

CODE = {"name": "code", "unsafe_local": True}


def elected(spec: object, *completions: str) -> str:
    """Return the completion that wins the vote."""
    reward = load_reward(spec)
    try:
        return completions[majorities(reward, [completions])[0]]
    finally:
        reward.close()


def test_equal_formulas_vote_together():
    """Three right fractions of four answers, each written in its own way."""
    answers = (r"\boxed{2}", r"\boxed{\frac{\sqrt{3}}{2}}", r"so $\sqrt{3}/2$", r"<answer>\dfrac{\sqrt{3}}{2}</answer>")
    assert elected("math", *answers) == answers[1]
    assert elected(["math", {"name": "format", "weight": 0.1}], *answers) == answers[1]


def test_equal_formulas_of_different_questions_do_not_vote_together():
    reward = load_reward("math")
    groups = [(r"\boxed{x}", r"\boxed{1+x}", r"\boxed{x+1}"), (r"\boxed{x}", r"\boxed{x}", r"\boxed{1+x}")]
    assert majorities(reward, groups) == [1, 0]
    reward.close()


@pytest.mark.parametrize(
    ("reward", "completions", "first"),
    [
        ("last_number", ("it is 9", "a 7", "#### 7.00"), 1),
        ("last_number", ("9", "7", "it is 9"), 0),
        ("last_number", ("8", "7"), 0),
        ("last_number", ("no idea", "no idea", "7"), 2),
        ("last_number", ("no idea", "none"), 0),
        ("exact", ("#cat", "#dog", "the dog", "a#dog"), 1),
        ("multiple_choice", ("The answer is C.", "(B)", "B", "A"), 1),
        ("format", ("it is 9", "a 7", "#### 7.00"), 1),
        ("format", ("cat", "dog", "dog"), 1),
        (CODE, ("```\na\n```", "```\nb\n```", "so\n```python\nb\n```"), 1),
    ],
)
def test_the_vote_is_over_what_the_matcher_reads(reward: object, completions: tuple[str, ...], first: int):
    assert elected(reward, *completions) == completions[first]


def test_the_matcher_among_several_rewards_reads_the_answers():
    assert matcher_of(load_reward(["format", "exact"]))[0] is MATCHERS["exact"]
    assert matcher_of(WeightedSum([(InProcessReward(lambda completion: 1.0), 1.0)]))[1] is None
    assert matchers_in(["format", {"name": "exact", "weight": 2}, ("last_number", 1.0), "my.py:f"]) == [
        "exact",
        "last_number",
    ]
    assert right.MATCHERS == set(MATCHERS) < set(BUILTIN)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("last_number", "9 * 2 = 18\n#### $1,800.50", r"\frac{1}{2}"),
        ("last_number", "18 km/h", "10:30"),
        ("multiple_choice", "(B)", "Paris"),
        ("math", r"\frac{1}{2}", ""),
        ("math", r"0.\overline{3}", "He goes to the market every day and buys a lot."),
        ("math", r"\text{ten} \times x", "x+" * 501 + "1"),
        ("exact", "Paris", " "),
        ("exact", 18, ["18"]),
        ("exact", 18.5, ("18",)),
        ("math", "18", {"value": "18"}),
    ],
)
def test_a_reference_that_no_answer_can_match_is_a_fault(name: str, good: object, bad: object):
    check = reference_checks([name])[name]
    check(good)
    with pytest.raises(ValueError, match=r"^the reference answer is "):
        check(bad)
