"""A run on several files: the shares of its questions, and what a resume makes of them."""

import json

from kill_cases import assert_same
from run_cases import outdo_, write_rows

STEPS = ("eval.every=0", "data.eval_path=")


def sources(home):
    """Three files of questions, and the setting that mixes them."""
    for name, count in (("a", 2), ("b", 9), ("c", 5)):
        write_rows(home / f"{name}.jsonl", [{"prompt": f"{name}{n}=", "answer": str(n)} for n in range(count)])
    listed = ", ".join(
        f'{{path = "{name}.jsonl", weight = {weight}}}' for name, weight in zip("abc", (2, 1, 1), strict=True)
    )
    return f"data.path=[{listed}]"


def test_a_resumed_run_on_a_mixture_equals_an_uninterrupted_one_and_names_a_file_that_has_changed(own_home):
    setting = sources(own_home)
    outdo_(own_home, "train", "recipe.toml", "run=./whole", setting, "steps=4", *STEPS)
    outdo_(own_home, "train", "recipe.toml", "run=./parts", setting, "steps=2", *STEPS)
    outdo_(own_home, "resume", "./parts", "steps=4")
    assert_same(own_home / "parts", own_home / "whole")
    with (own_home / "b.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "7=", "answer": "7"}) + "\n")
    said = outdo_(own_home, "resume", "./parts", "steps=5", status=2)
    assert "data.path[2]: the file has changed" in said
    assert "data.path[1]" not in said
