"""How the replicas divide the models is a truth value or a table of options, also in the recipe of a run."""

import tomllib

import pytest

from outdo.config.file import dump, load

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
