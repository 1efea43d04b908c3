"""Mistakes in recipes, data, model folders and rewards are reported at once: status 2, no traceback, no torch."""

import json
import os
import subprocess
import sys

import pytest

VALID_REWARD = "def score(completion, answer):\n    return completion == answer\n"
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
    """Return the errors of `outdo train` or `check` for wrong settings, and assert that no large library was loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, command, *map(str, settings)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"COLUMNS": "500"},
    )
    *errors, loaded = done.stderr.splitlines()
    assert loaded == "loaded:"
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return "\n".join(errors)


def assert_reports(errors, *mistakes):
    missing = [mistake for mistake in mistakes if mistake not in errors]
    assert not missing, errors


@pytest.fixture
def valid(model, sums):
    return {"model": model, "data.path": sums, "rewards": "last_number"}


@pytest.fixture
def errors_of(valid):
    """Return the errors of `outdo train` for valid settings of which some are replaced."""

    def run(*more, **wrong):
        merged = valid | {name.replace("__", "."): value for name, value in wrong.items()}
        return refused("train", *more, *(f"{key}={value}" for key, value in merged.items()))

    return run


@pytest.fixture
def broken_model(tmp_path, model):
    """Return a copy of the model folder for the test to break."""
    folder = tmp_path / "models" / "broken"
    folder.mkdir(parents=True)
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def reward_file(folder, text):
    (folder / "my_reward.py").write_text(text)
    return folder / "my_reward.py"


# ------------------------------------------------------------------------------------------------------------- recipe


def test_unknown_keys_wrong_types_and_values_out_of_range_are_reported_together(model, sums, tmp_path):
    path = tmp_path / "recipe.toml"
    text = f'model = "{model}"\nstepz = 3\n[data]\npath = "{sums}"\n[optim]\nlr = "1e-6"\nclip_norm = -1\n'
    path.write_text(text + "[train]\ngruop_size = 4\npasses = 1.5\n")
    errors = refused("train", path, "sampling.top_p=2")
    assert_reports(
        errors,
        "stepz: unknown setting; did you mean steps?",
        "train.gruop_size: unknown setting; did you mean train.group_size?",
    )
    assert_reports(errors, 'optim.lr: expected a number, found "1e-6"', "take the quotes off")
    assert_reports(errors, "optim.clip_norm: expected a number above 0")
    assert_reports(
        errors, "train.passes: expected a whole number, found 1.5", "sampling.top_p: expected 1.0 or less, found 2"
    )
    assert str(path) in errors
    assert "command line: sampling.top_p" in errors


def test_settings_that_exclude_each_other_are_reported_together(errors_of, sums):
    errors = errors_of(
        train__group_size=1, sampling__temperature=0, data__eval_path=sums, data__eval_rows=3, train__minibatches=99
    )
    assert_reports(
        errors, "train.group_size = 1", "sampling.temperature = 0", "data.eval_rows = 3", "train.minibatches = 99"
    )


def test_a_missing_recipe_and_wrong_settings_on_the_command_line(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    errors = refused("train", tmp_path / "recipe.tmol", "optim.lr=fast", "stepz=3")
    assert_reports(errors, "recipe.tmol: no such file; did you mean recipe.toml?")
    assert_reports(errors, "optim.lr: expected a number", "stepz: unknown setting; did you mean steps?")
    assert "required" not in errors  # the file that is missing may have model and data


def test_a_recipe_that_is_not_toml(tmp_path):
    (tmp_path / "recipe.toml").write_text('model = "unfinished\n')
    assert_reports(refused("check", tmp_path / "recipe.toml"), "recipe.toml: not valid TOML", "line 1")


# --------------------------------------------------------------------------------------------------------------- data


def test_missing_data_offers_the_nearest_file(errors_of, sums):
    assert_reports(errors_of(data__path=sums.with_name("summs.jsonl")), "summs.jsonl", "sums.jsonl")


def test_invalid_rows_are_reported_with_number_and_reason(errors_of, tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = ['{"question": "1+1=", "answer": "2"}', '{"question": null, "answer": "2"}', "{not json}"]
    rows += ['{"question": "", "answer": "2"}', '{"answer": "2"}', '{"question": 5, "answer": "2"}']
    path.write_text("\n".join(rows))
    errors = errors_of(data__path=path)
    assert_reports(errors, 'row 2: column "question" is null', "row 3: ", 'row 4: column "question" is empty')
    assert_reports(errors, 'row 5: no column "question"', 'row 6: column "question" is neither text nor')


def test_missing_columns_are_reported(errors_of, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "1+1=", "solutoin": "2"}))
    errors = errors_of(data__path=path, data__answer="solution")
    assert_reports(errors, 'no column "solution"', "did you mean solutoin?")
    assert_reports(errors_of(data__path=path), "no column looks like the reference answer", "data.answer=NAME")


# -------------------------------------------------------------------------------------------------------------- model


def test_a_model_folder_that_does_not_exist_offers_its_nearest_sibling(errors_of, broken_model):
    assert_reports(errors_of(model=broken_model.with_name("brokn")), "no folder 'brokn'", "did you mean broken?")


def test_a_model_with_only_pickle_weights_is_never_opened(errors_of, broken_model, tmp_path):
    (broken_model / "model.safetensors").unlink()
    pickle = b"cos\nsystem\n(S'touch %s'\ntR." % str(tmp_path / "opened").encode()
    (broken_model / "pytorch_model.bin").write_bytes(pickle)
    assert_reports(errors_of(model=broken_model), "pytorch_model.bin", "safetensors")
    assert not (tmp_path / "opened").exists()


def test_truncated_weights_are_named(errors_of, broken_model):
    whole = (broken_model / "model.safetensors").read_bytes()
    (broken_model / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert_reports(errors_of(model=broken_model), "model.safetensors")


# ------------------------------------------------------------------------------------------------------------- reward


@pytest.mark.parametrize(
    ("source", "name", "mistake"),
    [
        (None, "score", "my_reward.py"),
        ("def score(completion, answer)\n    return 1\n", "score", "line 1"),
        (VALID_REWARD, "scrore", "did you mean score?"),
        (
            "def score(completion, beauty):\n    return 1\n",
            "score",
            "score needs beauty; the data has question, answer",
        ),
    ],
    ids=["no file", "syntax error", "wrong name", "unknown parameter"],
)
def test_a_reward_that_cannot_be_called(errors_of, tmp_path, source, name, mistake):
    path = tmp_path / "my_reward.py" if source is None else reward_file(tmp_path, source)
    errors = errors_of(rewards=f"{path}:{name}")
    assert_reports(errors, "rewards: ", mistake)
    assert len(errors.splitlines()) == 1


def test_data_model_and_reward_are_reported_together(errors_of, broken_model, sums, tmp_path):
    (broken_model / "config.json").unlink()
    path = reward_file(tmp_path, "import a_module_that_nobody_has\n" + VALID_REWARD)
    errors = errors_of(model=broken_model, data__path=sums.with_name("nothing.jsonl"), rewards=f"{path}:score")
    assert_reports(errors, "nothing.jsonl", "config.json", "a_module_that_nobody_has")


@pytest.mark.parametrize("command", ["train", "check"])
def test_required_settings_are_named_if_nothing_is_given(command):
    assert_reports(refused(command), "model: required", "data.path: required")


def test_mistakes_in_a_recipe_do_not_hide_those_in_its_files(outdo, tmp_path):
    files = [f"model={tmp_path / 'nowhere'}", "data.path=none.jsonl", "rewards=my.py:score"]
    done = outdo("train", "optim.lrr=3", "steps=-1", *files)
    assert done.status == 2
    lines = done.error.splitlines()
    for mistake in (
        "optim.lrr: unknown setting",
        "steps: expected 1 or more",
        "nowhere",
        "none.jsonl: no such file",
        "my.py",
    ):
        assert sum(mistake in line for line in lines) == 1, mistake


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "model", "--data", "data.jsonl", "--temperature", "-1"),
        ("chat", "model", "--temperature", "-1"),
        ("sft", "model", "--data", "data.jsonl", "--out", "out", "--lr", "-1"),
    ],
    ids=["eval", "chat", "sft"],
)
def test_an_invalid_number_is_refused_with_its_option(outdo, arguments):
    done = outdo(*arguments)
    assert done.status == 2
    assert arguments[-2] in done.error
    assert "Traceback" not in done.error
