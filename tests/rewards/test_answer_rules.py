"""The rules of the matchers, for all numbers: what bounds, rounds, orders, measures or names a value."""

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outdo.rewards import load_reward
from outdo.rewards.final_answer import lines_after_cue
from outdo.rewards.last_number import last_number
from outdo.rewards.matchers import majorities, matcher_called
from outdo.rewards.math import math
from outdo.rewards.multiple_choice import final_letter, multiple_choice

AT_LEAST = (
    *("at least {}", "{} or more", "no fewer than {}", "not less than {}", "{} or greater", r"\ge {}", "{} at least"),
    *("at the very least {}", "{} eggs or more", "greater than or equal to {}", "{} and up", "upwards of {}", "{}+"),
)
MORE = ("more than {}", "over {}", "above {}", "> {}", "greater than {}", "in excess of {}", "exceeding {}")
AT_MOST = (
    "at most {}",
    "{} or fewer",
    "{} or less",
    "no more than {}",
    "up to {}",
    "{} at most",
    r"\le {}",
    "not over {}",
)
LESS = ("less than {}", "under {}", "below {}", "fewer than {}", "< {}")
RELATIONS = [
    (phrase, relation) for relation, phrases in enumerate((AT_LEAST, MORE, AT_MOST, LESS)) for phrase in phrases
]
EXACT = (
    *(
        "{}",
        "exactly {}",
        "about {}",
        "{} eggs",
        "{} in total",
        "{} more eggs",
        "a total of {}",
        "{} years older",
        "{} left over",
    ),
    *("only {}", "{} fewer", "{} or so", "the minimum is {}", "it adds up to {}"),
)
FRAMES = ("{}", r"\boxed{{\text{{{}}}}}", "The answer is {}.", "<answer>{}</answer>", "#### {}", "So she has {}.")
NUMBERS = st.integers(2, 99_999)


@settings(max_examples=30)
@given(NUMBERS, st.sampled_from(RELATIONS), st.sampled_from(FRAMES))
def test_a_bounded_number_is_no_answer_wherever_the_bound_stands(number: int, bound: tuple[str, int], frame: str):
    completion = frame.format(bound[0].format(number))
    assert not last_number(completion, str(number))
    assert not math(completion, str(number))


@settings(max_examples=30)
@given(NUMBERS, st.sampled_from(EXACT), st.sampled_from(FRAMES))
def test_other_words_around_a_number_do_not_bound_it(number: int, phrase: str, frame: str):
    completion = frame.format(phrase.format(number))
    assert last_number(completion, str(number))
    assert math(completion, str(number))


@settings(max_examples=30)
@given(NUMBERS, st.sampled_from(RELATIONS), st.sampled_from(RELATIONS), st.integers(0, 1))
def test_two_bounds_are_equal_if_relation_and_number_are(
    number: int, first: tuple[str, int], second: tuple[str, int], more: int
):
    reference, completion = first[0].format(number), second[0].format(number + more)
    assert math(completion, reference) == (first[1] == second[1] and not more)


@settings(max_examples=30)
@given(NUMBERS, st.sampled_from(RELATIONS))
def test_a_bounded_reference_is_no_plain_number(number: int, bound: tuple[str, int]):
    assert not math(str(number), bound[0].format(number))
    with pytest.raises(ValueError, match="the reference answer is not one number"):
        last_number(str(number), bound[0].format(number))


BESIDE = (
    *(
        r"\boxed{{\frac{{{0}}}{{{1}}} \approx {2}}}",
        "{0}/{1} ≈ {2}",
        "The answer is {0}/{1}, or about {2}.",
        "{0}/{1} ({2})",
    ),
    *(
        r"$\frac{{{0}}}{{{1}}}$ (approximately ${2}$)",
        r"<answer>\frac{{{0}}}{{{1}}} (\approx {2})</answer>",
        "{2}, or {0}/{1}",
    ),
)


@settings(max_examples=30)
@given(
    st.integers(1, 400),
    st.sampled_from([3, 7, 9, 11, 13, 17]),
    st.integers(1, 5),
    st.sampled_from(BESIDE),
    st.booleans(),
)
def test_an_exact_value_counts_beside_a_decimal_that_agrees_with_it(
    above: int, below: int, digits: int, form: str, agrees: bool
):
    value = Fraction(above, below)
    assume(value.denominator > 1)
    decimal = f"{float(value) + (0 if agrees else 2 / 10**digits):.{digits}f}"
    completion = form.format(above, below, decimal)
    assert last_number(completion, f"{above}/{below}") == agrees
    assert math(completion, rf"\frac{{{above}}}{{{below}}}") == agrees
    if agrees:
        assert last_number(completion, decimal)
    assert not last_number(f"about {decimal}", f"{above}/{below}")


@settings(max_examples=30)
@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 99), st.sampled_from("-/:."))
def test_a_reference_in_the_form_of_a_date_or_a_ratio_is_never_computed(first: int, second: int, third: int, sign: str):
    reference = f"{first}{sign}{second}{sign}{third}"
    assert math(rf"\boxed{{{reference}}}", reference)
    values = {first - second - third, Fraction(first, second * third), first, third, f"{first}{second}{third}"}
    assert not any(math(rf"\boxed{{{value}}}", reference) for value in values)
    assert not math(f"{third + 1}{sign}{second}{sign}{first}", reference)


@settings(max_examples=30)
@given(st.sampled_from(["June", "Room", "Day", "Chapter", "Gate"]), st.integers(1, 31), st.integers(1, 31))
def test_words_before_a_number_are_part_of_a_reference(word: str, number: int, other: int):
    for completion in (
        f"{word} {number}",
        rf"\boxed{{\text{{{word} }} {number}}}",
        f"The answer is {word.lower()} {number}.",
    ):
        assert math(completion, f"{word} {number}")
        assert math(completion, rf"\text{{{word} {number}}}")
        assert math(completion, f"{word} {other}") == (number == other)
    assert not math(str(number), f"{word} {number}")
    assert not math(f"Table {number}", f"{word} {number}")


@settings(max_examples=30)
@given(st.integers(-20, 20), st.integers(-20, 20))
def test_an_ordered_pair_has_an_order_and_a_set_has_none(x: int, y: int):
    assume(x != y)
    assert not math(rf"\boxed{{({y},{x})}}", f"({x},{y})")
    assert math(rf"\boxed{{\{{{y},{x}\}}}}", rf"\{{{x},{y}\}}")
    assert math(rf"\boxed{{{y}, {x}}}", f"{x}, {y}")
    for answer, reference in (
        (f"({y},{x})", rf"\{{{x},{y}\}}"),
        (f"({y},{x})", f"{x}, {y}"),
        (f"{y},{x}", f"({x},{y})"),
    ):
        assert not math(rf"\boxed{{{answer}}}", reference)
    assert not math(rf"\boxed{{\{{{x},{y}\}}}}", f"({x},{y})")
    assert not math(rf"\boxed{{{y},{x}}}", f"a={x}, b={y}")
    assert math(rf"\boxed{{b={y}, a={x}}}", f"a={x}, b={y}")
    assert math(rf"\boxed{{({x},{y})}}", rf"\begin{{pmatrix}} {x} \\ {y} \end{{pmatrix}}")


UNITS = (
    "km",
    "meters",
    "miles",
    "dollars",
    "cents",
    "euros",
    "hours",
    "minutes",
    "kg",
    "grams",
    "degrees",
    "percent",
    "cm^2",
)


@settings(max_examples=30)
@given(NUMBERS, st.sampled_from(UNITS), st.sampled_from(UNITS))
def test_another_unit_is_another_answer_and_a_missing_one_is_not(number: int, unit: str, other: str):
    reference = rf"{number} \text{{ {unit}}}" if "^" not in unit else f"{number} {unit}"
    assert math(f"{number} {other}", reference) == (unit == other)
    assert math(f"The answer is {number} {other}.", f"{number} {unit}") == (unit == other)
    assert math(str(number), reference)
    assert math(f"{number} {unit}", str(number))
    assert last_number(f"{number} {other}", f"{number} {unit}") == (unit == other)


@settings(max_examples=30)
@given(st.integers(2, 60), st.integers(1, 60))
def test_what_is_counted_out_of_is_no_answer(whole: int, part: int):
    assume(part < whole)
    for form in (
        "{} out of {}",
        "So {} out of {} students passed.",
        r"\boxed{{{} \text{{ out of }} {}}}",
        "{} eggs out of {}",
    ):
        completion = form.format(part, whole)
        assert (last_number(completion, str(part)), math(completion, str(part))) == (True, True)
        assert not last_number(completion, str(whole))
        assert not math(completion, str(whole))
        assert not last_number(form.format(whole, part), str(part))


@settings(max_examples=30)
@given(st.integers(2, 4000), st.integers(2, 9), st.integers(2, 9))
def test_a_numeral_equals_only_the_same_numeral_in_the_same_base(number: int, base: int, other: int):
    digits, rest = "", number
    while rest:
        digits, rest = str(rest % base) + digits, rest // base
    for completion in (
        rf"\boxed{{{digits}_{base}}}",
        f"The answer is ${digits}_{{{base}}}$.",
        f"{digits} in base {base}",
    ):
        assert math(completion, f"{digits}_{base}")
        assert not math(completion, digits)
        assert math(completion, f"{digits}_{other}") == (base == other)
    assert not math(rf"\boxed{{{digits}}}", f"{digits}_{base}")


@settings(max_examples=30)
@given(NUMBERS, st.sampled_from("abcdenpqrtuvwxyz"), st.integers(2, 50))
def test_a_coefficient_is_no_number_and_a_residue_is_one(number: int, variable: str, modulus: int):
    assert not last_number(rf"\boxed{{{number}{variable}}}", str(number))
    assert not math(rf"\boxed{{{number}{variable}}}", str(number))
    residue = number % modulus
    for form in (r"\boxed{{{} \pmod{{{}}}}}", r"$x \equiv {} \pmod{{{}}}$", "{} mod {}"):
        completion = form.format(residue, modulus)
        assert (last_number(completion, str(residue)), math(completion, str(residue))) == (True, True)
        assert not last_number(completion, str(modulus))
        assert math(completion, rf"{residue} \pmod{{{modulus}}}")
        assert not math(completion, rf"{residue} \pmod{{{modulus + 1}}}")


@settings(max_examples=30)
@given(st.integers(1, 500), st.integers(2, 50), st.sampled_from(["{}", "-{}"]))
def test_a_sign_may_stand_in_either_part_of_a_fraction(above: int, below: int, outer: str):
    value = Fraction(above, below) * (-1 if outer.startswith("-") else 1)
    for signs, factor in ((("-", ""), -1), (("", "-"), -1), (("-", "-"), 1)):
        fraction = rf"\frac{{{signs[0]}{above}}}{{{signs[1]}{below}}}"
        assert last_number(rf"\boxed{{{outer.format(fraction)}}}", str(value * factor))


CHOSEN = (
    *(
        "**{0}**\n\nExplanation: {1} is wrong.",
        "I choose {0} because {1} is too small.",
        "It's {0}.",
        "{0} is correct. {1} is not.",
    ),
    *(
        "Thus ({0}) is correct, while ({1}) is wrong.",
        "The correct option is: {2}",
        "Option {0} is right: option {1} ignores air.",
    ),
    *(
        "({1}) is false, so it is ({0}).",
        "I'd pick option {0} over {1}.",
        "We can rule out {1}, so {0}.",
        "The answer is {0}, not {1}.",
    ),
    *(
        "**{0}) Paris**\n\nLondon ({1}) is in England.",
        "{1} is tempting, but {0} is right.",
        "The answer is ({0}); ({1}) fails.",
    ),
)
UNDECIDED = (
    "{0} or {1}",
    "Both {0} and {1} are correct.",
    "{0} is wrong.",
    "It isn't {0}.",
    "Neither {0} nor {1}.",
    "Option {0} fails.",
)


@settings(max_examples=30)
@given(st.permutations("ABCDE"), st.sampled_from(CHOSEN))
def test_the_letter_that_prose_chooses_is_the_answer(letters: list[str], form: str):
    completion = form.format(*letters[:2], letters[0].lower())
    assert final_letter(completion) == letters[0]
    assert not multiple_choice(completion, letters[1])


@settings(max_examples=30)
@given(st.permutations("BCDE"), st.sampled_from(UNDECIDED))
def test_a_letter_that_prose_rejects_or_leaves_open_is_no_answer(letters: list[str], form: str):
    assert final_letter(form.format(*letters)) is None


def test_answers_in_words_and_numbers_have_votes():
    reward = load_reward("math")
    try:
        groups = [
            ("The answer is 9.", "It starts at 10:30 AM.", r"\boxed{10:30\text{ am}}"),
            ("6", "June 6", "june 6", "8"),
        ]
        assert majorities(reward, groups) == [1, 1]
    finally:
        reward.close()
    assert matcher_called("math").read("Two thirds, that is 2/3 ≈ 0.667") == "2/3"


@pytest.mark.parametrize("lead", ["The answer is:\n", "**Answer:**\n", "The answer is\n", "The answer:\n\n"])
def test_a_grid_after_the_answer_is_keeps_its_first_row(lead: str):
    grid = "_ _ Q _\nQ _ _ _\n_ _ _ Q\n_ Q _ _"
    assert lines_after_cue(lead + grid) == grid
    assert lines_after_cue(lead + grid.replace("_", "*")) == grid.replace("_", "*")
