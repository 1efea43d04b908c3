"""The attention of a recipe is checked before a model loads: its name, its options, and what it needs."""

import pytest

from outdo.config.attention import sequence_replicas
from outdo.config.file import dump, load
from outdo.config.names import ATTENTIONS
from outdo.utils.errors import UserError

NEEDED = ["model=m", "data.path=x.jsonl"]
FOUR = "cluster.replicas=4"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["attention=ulises"], 'attention: nothing is called "ulises"; did you mean ulysses?'),
        (["attention=eager"], "expected auto, shared, padded, flash_attention_2, flex_attention, ulysses"),
        (["attention={name='shared', replicas=2}"], "attention.replicas: unknown option; shared takes no options"),
        (["attention=ulysses"], 'attention = "ulysses": replicas share each sequence; set cluster.replicas to 2 or'),
        ([FOUR, "attention={name='ulysses', replicas=1}"], "attention.replicas: expected a whole number of 2 or more"),
        ([FOUR, "attention={name='ulysses', replicas=3}"], "attention.replicas = 3: does not divide cluster.replicas"),
    ],
)
def test_a_mistake_in_the_attention_is_one_sentence(overrides: list[str], sentence: str):
    with pytest.raises(UserError) as caught:
        load(None, [*NEEDED, *overrides])
    (problem,) = caught.value.problems
    assert sentence in problem


def test_a_name_alone_is_read_and_written_as_before():
    for name in ATTENTIONS:
        recipe = load(None, [*NEEDED, "cluster.replicas=2", f"attention={name}"])
        assert f'attention = "{name}"' in dump(recipe)


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ([], 1),
        ([FOUR], 1),
        ([FOUR, "attention=ulysses"], 4),
        ([FOUR, "attention={name='ulysses', replicas=2}"], 2),
    ],
)
def test_all_replicas_share_a_sequence_unless_a_number_is_given(overrides: list[str], count: int):
    assert sequence_replicas(load(None, [*NEEDED, *overrides])) == count
