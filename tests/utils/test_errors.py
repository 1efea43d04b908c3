"""The most similar name; swapped letters count less than others."""

import pickle

import pytest

from outdo.utils.errors import UserError, did_you_mean, nearest


@pytest.mark.parametrize(
    ("wrong", "known", "name"),
    [
        ("gpro", ["gspo", "gmpo", "grpo"], "grpo"),  # the same letters; gspo has others
        ("stepz", ["seed", "steps"], "steps"),
        ("best", ["rejection", "best_of_group"], "best_of_group"),  # the beginning of a name
        ("k4", ["k1", "k2"], None),
        ("a", [], None),
    ],
)
def test_the_most_similar_name(wrong, known, name):
    assert nearest(wrong, known) == name
    assert did_you_mean(wrong, known) == (f"; did you mean {name}?" if name else "")


def test_an_error_from_another_process_has_its_sentences():
    sent = pickle.loads(pickle.dumps(UserError(["one mistake", "another"])))
    assert (sent.problems, str(sent)) == (("one mistake", "another"), "one mistake\nanother")
