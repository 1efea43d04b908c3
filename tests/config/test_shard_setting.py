"""How the replicas divide the models is a truth value or a table of options, also in the recipe of a run."""

import re
import tomllib

import pytest

from outdo.config.file import dump, load
from outdo.utils.errors import UserError

NEEDED = ["model=m", "data.path=x.jsonl", "cluster.replicas=2"]


@pytest.mark.parametrize(
    ("written", "shard", "options"),
    [
        ("true", True, (False, "float32")),
        ("false", False, (False, "float32")),
        ("{offload = true}", True, (True, "float32")),
        ("{reduce_dtype = 'bfloat16'}", True, (False, "bfloat16")),
    ],
)
def test_it_is_read_and_written(written: str, shard: bool, options: tuple[bool, str]):
    recipe = load(None, [*NEEDED, f"cluster.shard={written}"])
    found = recipe.cluster.shard
    assert (bool(found), (found.offload, found.reduce_dtype)) == (shard, options)
    text = dump(recipe)
    assert tomllib.loads(text)["cluster"]["shard"] == tomllib.loads(f"shard = {written}")["shard"]


@pytest.mark.parametrize("name", ["adafactor", "adamw8bit"])
def test_an_algorithm_that_needs_whole_weights_is_refused_on_a_divided_model(name: str):
    wanted = [*NEEDED, f"optim.algorithm={name}"]
    sentence = (
        f'optim.algorithm = "{name}": does not work on a divided model (cluster.shard = true); adamw, sgd, polyak do'
    )
    with pytest.raises(UserError, match=re.escape(sentence)):
        load(None, [*wanted, "cluster.shard=true"])
    load(None, wanted)
    load(None, [*wanted, "cluster.shard=true", "cluster.replicas=1"])
    load(None, [*wanted, "cluster.shard=true", "train.adapter=lora"])  # adapters are not divided
