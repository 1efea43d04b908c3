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


def test_a_resumed_run_on_a_mixture_equals_an_uninterrupted_one(own_home):
    setting = sources(own_home)
    outdo_(own_home, "train", "recipe.toml", "run=./whole", setting, "steps=6", *STEPS)
    outdo_(own_home, "train", "recipe.toml", "run=./parts", setting, "steps=3", *STEPS)
    outdo_(own_home, "resume", "./parts", "steps=6")
    assert_same(own_home / "parts", own_home / "whole")
    outdo_(own_home, "train", "recipe.toml", "run=./plain", 'data.path=["a.jsonl", "b.jsonl"]', "steps=1", *STEPS)


def test_a_resume_names_the_file_of_a_mixture_that_has_changed(own_home):
    setting = sources(own_home)
    outdo_(own_home, "train", "recipe.toml", "run=./run", setting, "steps=1", *STEPS)
    with (own_home / "b.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "7=", "answer": "7"}) + "\n")
    said = outdo_(own_home, "resume", "./run", "steps=2", status=2)
    assert "data.path[2]: the file has changed" in said
    assert "data.path[1]" not in said
