"""Broken recipes, data, model folders and rewards: all told at once, status 2, no traceback, and torch never loaded."""

import json
import os
import subprocess
import sys

import pytest

SOUND_REWARD = "def score(completion, answer):\n    return completion == answer\n"
PROGRAM = """
import sys
from outdo.cli.main import main
sys.argv = ["outdo", *sys.argv[1:]]
try:
    main()
finally:
    heavy = [name for name in ("torch", "transformers", "datasets", "trl") if name in sys.modules]
    print("loaded:", *heavy, file=sys.stderr)
"""


def refused(command, *settings):
    """What `outdo train` or `check` says of settings that are wrong; it must not have loaded anything heavy."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, command, *map(str, settings)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"COLUMNS": "500"},
    )
    *told, loaded = done.stderr.splitlines()
    assert loaded == "loaded:"
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return "\n".join(told)


def says(told, *mistakes):
    missing = [mistake for mistake in mistakes if mistake not in told]
    assert not missing, told


@pytest.fixture
def sound(model, sums):
    return {"model": model, "data.path": sums, "rewards": "last_number"}


@pytest.fixture
def told(sound):
    """What `outdo train` says of sound settings with some made unsound."""

    def run(*more, **unsound):
        merged = sound | {name.replace("__", "."): value for name, value in unsound.items()}
        return refused("train", *more, *(f"{key}={value}" for key, value in merged.items()))

    return run


@pytest.fixture
def broken_model(tmp_path, model):
    """A copy of the model folder, to be broken."""
    folder = tmp_path / "models" / "broken"
    folder.mkdir(parents=True)
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def reward_file(folder, text):
    (folder / "my_reward.py").write_text(text)
    return folder / "my_reward.py"


# ------------------------------------------------------------------------------------------------------------- recipe


def test_unknown_keys_wrong_types_and_values_out_of_range_are_told_together(model, sums, tmp_path):
    path = tmp_path / "recipe.toml"
    text = f'model = "{model}"\nstepz = 3\n[data]\npath = "{sums}"\n[optim]\nlr = "1e-6"\nclip_norm = -1\n'
    path.write_text(text + "[train]\ngruop_size = 4\npasses = 1.5\n")
    told = refused("train", path, "sampling.top_p=2")
    says(
        told,
        "stepz: unknown setting; did you mean steps?",
        "train.gruop_size: unknown setting; did you mean train.group_size?",
    )
    says(told, 'optim.lr: expected a number, found "1e-6"', "take the quotes off")
    says(told, "optim.clip_norm: expected a number above 0")
    says(told, "train.passes: expected a whole number, found 1.5", "sampling.top_p: expected 1.0 or less, found 2")
    assert str(path) in told
    assert "command line: sampling.top_p" in told


def test_options_that_exclude_each_other_are_told_together(told, sums):
    said = told(
        train__group_size=1, sampling__temperature=0, data__eval_path=sums, data__eval_rows=3, train__minibatches=99
    )
    says(said, "train.group_size = 1", "sampling.temperature = 0", "data.eval_rows = 3", "train.minibatches = 99")


def test_a_recipe_that_does_not_exist_and_wrong_settings_beside_it(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    told = refused("train", tmp_path / "recipe.tmol", "optim.lr=fast", "stepz=3")
    says(told, "recipe.tmol: no such file; did you mean recipe.toml?")
    says(told, "optim.lr: expected a number", "stepz: unknown setting; did you mean steps?")
    assert "required" not in told  # what the file says of model and data nobody knows


def test_a_recipe_that_is_no_toml(tmp_path):
    (tmp_path / "recipe.toml").write_text('model = "unfinished\n')
    says(refused("check", tmp_path / "recipe.toml"), "recipe.toml: not valid TOML", "line 1")


# --------------------------------------------------------------------------------------------------------------- data


def test_data_that_is_not_there_offers_the_nearest(told, sums):
    says(told(data__path=sums.with_name("summs.jsonl")), "summs.jsonl", "sums.jsonl")


def test_broken_rows_are_told_with_number_and_reason(told, tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = ['{"question": "1+1=", "answer": "2"}', '{"question": null, "answer": "2"}', "{not json}"]
    rows += ['{"question": "", "answer": "2"}', '{"answer": "2"}', '{"question": 5, "answer": "2"}']
    path.write_text("\n".join(rows))
    said = told(data__path=path)
    says(said, 'row 2: column "question" is null', "row 3: ", 'row 4: column "question" is empty')
    says(said, 'row 5: no column "question"', 'row 6: column "question" is neither text nor')


def test_columns_that_are_not_there(told, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "1+1=", "solutoin": "2"}))
    said = told(data__path=path, data__answer="solution")
    says(said, 'no column "solution"', "did you mean solutoin?")
    says(told(data__path=path), "no column looks like the reference answer", "data.answer=NAME")


# -------------------------------------------------------------------------------------------------------------- model


def test_a_model_folder_that_does_not_exist_offers_its_nearest_sibling(told, broken_model):
    says(told(model=broken_model.with_name("brokn")), "no folder 'brokn'", "the nearest name there is broken")


def test_a_model_that_is_only_there_as_pickle_is_never_opened(told, broken_model, tmp_path):
    (broken_model / "model.safetensors").unlink()
    pickle = b"cos\nsystem\n(S'touch %s'\ntR." % str(tmp_path / "opened").encode()
    (broken_model / "pytorch_model.bin").write_bytes(pickle)
    says(told(model=broken_model), "pytorch_model.bin", "safetensors")
    assert not (tmp_path / "opened").exists()


def test_weights_that_were_cut_off_are_named(told, broken_model):
    whole = (broken_model / "model.safetensors").read_bytes()
    (broken_model / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    says(told(model=broken_model), "model.safetensors")


# ------------------------------------------------------------------------------------------------------------- reward


@pytest.mark.parametrize(
    ("source", "name", "mistake"),
    [
        (None, "score", "my_reward.py"),
        ("def score(completion, answer)\n    return 1\n", "score", "line 1"),
        (SOUND_REWARD, "scrore", "did you mean score?"),
        (
            "def score(completion, beauty):\n    return 1\n",
            "score",
            "score needs beauty; the data has question, answer",
        ),
    ],
    ids=["no file", "syntax error", "wrong name", "unknown parameter"],
)
def test_a_reward_that_cannot_be_called(told, tmp_path, source, name, mistake):
    path = tmp_path / "my_reward.py" if source is None else reward_file(tmp_path, source)
    said = told(rewards=f"{path}:{name}")
    says(said, "rewards: ", mistake)
    assert len(said.splitlines()) == 1


def test_data_model_and_reward_are_told_together(told, broken_model, sums, tmp_path):
    (broken_model / "config.json").unlink()
    path = reward_file(tmp_path, "import a_module_that_nobody_has\n" + SOUND_REWARD)
    said = told(model=broken_model, data__path=sums.with_name("nothing.jsonl"), rewards=f"{path}:score")
    says(said, "nothing.jsonl", "config.json", "a_module_that_nobody_has")


@pytest.mark.parametrize("command", ["train", "check"])
def test_nothing_at_all_is_asked_for_politely(command):
    says(refused(command), "model: required", "data.path: required")


def test_a_wrong_recipe_does_not_hide_what_is_wrong_with_what_it_names(outdo, tmp_path):
    asked = ["optim.lrr=3", "steps=-1", f"model={tmp_path / 'nowhere'}", "data.path=none.jsonl", "rewards=my.py:score"]
    done = outdo("train", *asked)
    assert done.status == 2
    lines = done.error.splitlines()
    for said in (
        "optim.lrr: unknown setting",
        "steps: expected 1 or more",
        "nowhere",
        "none.jsonl: no such file",
        "my.py",
    ):
        assert sum(said in line for line in lines) == 1, said


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "model", "--data", "data.jsonl", "--temperature", "-1"),
        ("chat", "model", "--temperature", "-1"),
        ("sft", "model", "--data", "data.jsonl", "--out", "out", "--lr", "-1"),
    ],
    ids=["eval", "chat", "sft"],
)
def test_a_number_that_cannot_be_is_refused_by_its_option(outdo, arguments):
    done = outdo(*arguments)
    assert done.status == 2
    assert arguments[-2] in done.error
    assert "Traceback" not in done.error
