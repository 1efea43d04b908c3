"""Several files: one after the other, or mixed in given shares; resumed, the order of their prompts stays the same."""

from collections import Counter

import pytest

from outdo.config.file import RecipeError, dump, load
from outdo.data.batches import Mixture
from outdo.data.prompts import Prompts
from outdo.data.splits import load_questions
from outdo.utils.errors import UserError


def files(written, **sizes):
    return {
        name: written([{"question": f"{name}{n}", "answer": "1"} for n in range(size)], f"{name}.jsonl")
        for name, size in sizes.items()
    }


def recipe(*sources, **more):
    listed = ", ".join(
        f'{{path = "{source[0]}", weight = {source[1]}}}' if isinstance(source, tuple) else f'"{source}"'
        for source in sources
    )
    return load(None, ["model=m", f"data.path=[{listed}]", *(f"data.{key}={value}" for key, value in more.items())])


def test_several_files_are_read_one_after_the_other_with_ids_of_their_own(written):
    a, b = files(written, a=2, b=2).values()
    questions = load_questions(recipe(a, b))
    assert [(each.id, each.text) for each in questions.train] == [
        ("1:1", "a0"),
        ("1:2", "a1"),
        ("2:1", "b0"),
        ("2:2", "b1"),
    ]
    assert set(questions.fingerprints) == {"data.path[1]", "data.path[2]"}
    assert "data.path[2]: 2 questions; columns: question -> prompt, answer -> answer" in questions.notes


def test_the_faults_of_all_files_are_reported_at_once(written):
    a = written([{"question": None, "answer": "1"}], "a.jsonl")
    with pytest.raises(UserError) as caught:
        load_questions(recipe(a, "nowhere.jsonl"))
    assert [line[:12] for line in caught.value.problems] == ["data.path[1]", "data.path[2]"]


def test_weights_are_given_for_every_file_or_for_none(written):
    with pytest.raises(RecipeError, match="expected a weight for each file, or for none"):
        recipe("a.jsonl", ("b.jsonl", 1))
    with pytest.raises(RecipeError, match=r"expected a number above 0"):
        recipe(("a.jsonl", 0))


def test_a_recipe_with_weights_is_written_and_read_back_and_its_shares_are_noted(written, tmp_path):
    a, b = files(written, a=2, b=2).values()
    asked = recipe((a, 3), (b, 1))
    (tmp_path / "recipe.toml").write_text(dump(asked))
    assert load(tmp_path / "recipe.toml") == asked
    questions = load_questions(asked)
    assert questions.weights == (3.0, 1.0)
    assert f"data.path: shares of each batch: 75.0% {a}, 25.0% {b}" in questions.notes


# ------------------------------------------------------------------------------------------------------------- batches

SOURCES = [[f"a{n}" for n in range(3)], [f"b{n}" for n in range(50)], [f"c{n}" for n in range(20)]]


def mixture(weights=(5, 3, 2), **how):
    return Mixture(SOURCES, weights, **{"per_step": 10, "seed": 1, **how})


def test_every_batch_has_the_shares_of_its_sources():
    batches = mixture()
    for _ in range(20):
        assert Counter(each[0] for each in batches.take(10)) == {"a": 5, "b": 3, "c": 2}


def test_shares_hold_within_one_prompt_where_batches_cannot_have_them():
    taken = mixture((0.7, 0.2, 0.1)).take(333)
    for count in range(1, 334):
        of = Counter(each[0] for each in taken[:count])
        assert all(abs(of[name] - share * count) <= 1 for name, share in zip("abc", (0.7, 0.2, 0.1), strict=True))


def test_each_source_has_its_own_epochs():
    taken = mixture().take(300)
    of_b = [each for each in taken if each[0] == "b"][:50]
    of_a = [each for each in taken if each[0] == "a"]
    assert sorted(of_b) == sorted(SOURCES[1])
    assert all(sorted(of_a[start : start + 3]) == SOURCES[0] for start in range(0, 150, 3))
    assert of_b != SOURCES[1]


@pytest.mark.parametrize("step", [0, 1, 3, 17])
def test_a_mixture_continues_exactly_where_it_was_saved(step):
    whole, first, second = mixture(), mixture(), mixture()
    expected = [whole.take(10) for _ in range(step + 5)]
    for _ in range(step):
        first.take(10)
    second.load_state(first.state())
    assert [second.take(10) for _ in range(5)] == expected[step:]


def test_the_order_of_one_source_is_what_it_always_was():
    assert Prompts(SOURCES[1], per_step=5, seed=3).take(5) == ["b9", "b39", "b24", "b15", "b42"]
