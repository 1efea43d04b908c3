"""Mistakes in recipes, data, model folders and rewards are reported at once: status 2, no traceback, no torch."""

import shutil

import pytest
from test_light_start import CLI, loaded

ROWS = """
{"question": "1+1=", "answer": "2"}
{"question": null, "answer": "2"}
{not json}
{"question": "", "answer": "2"}
{"answer": "2"}
{"question": 5, "answer": "2"}
"""


def test_mistakes_in_a_recipe_and_in_the_files_that_it_names_are_reported_together_without_torch(tmp_path):
    path = tmp_path / "recipe.toml"
    text = f'model = "{tmp_path}/nowhere"\nstepz = 3\nrewards = "my.py:score"\n[data]\npath = "none.jsonl"\n'
    path.write_text(f'{text}[optim]\nlr = "1e-6"\nclip_norm = -1\n[train]\ngruop_size = 4\npasses = 1.5\n')
    status, heavy, errors = loaded(CLI, "train", str(path), "sampling.top_p=2")
    assert (status, heavy) == (2, [])
    assert "Traceback" not in errors
    for mistake in (
        "stepz: unknown setting; did you mean steps?",
        "train.gruop_size: unknown setting; did you mean train.group_size?",
        'optim.lr: expected a number, found "1e-6"',
        "optim.clip_norm: expected a number above 0",
        "train.passes: expected a whole number, found 1.5",
        "command line: sampling.top_p: expected 1.0 or less, found 2",
        "none.jsonl: no such file",
        "nowhere",
        "my.py",
    ):
        assert sum(mistake in line for line in errors.splitlines()) == 1, mistake
    assert str(path) in errors


def test_mistakes_in_data_model_and_reward_are_reported_together_without_torch(model, tmp_path):
    """The weights are a pickle, which would write a file if it was opened."""
    broken, opened = shutil.copytree(model, tmp_path / "model"), tmp_path / "opened"
    (broken / "model.safetensors").unlink()
    (broken / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch %s'\ntR." % str(opened).encode())
    (tmp_path / "my_reward.py").write_text("import a_module_that_nobody_has\ndef score(completion): return 1")
    (tmp_path / "rows.jsonl").write_text(ROWS.strip())
    settings = (f"model={broken}", f"data.path={tmp_path}/rows.jsonl", f"rewards={tmp_path}/my_reward.py:score")
    status, heavy, errors = loaded(CLI, "train", *settings)
    assert (status, heavy) == (2, [])
    assert "Traceback" not in errors
    assert not opened.exists()
    for mistake in (
        "pytorch_model.bin",
        "a_module_that_nobody_has",
        'row 2: column "question" is null',
        "row 3: ",
        'row 4: column "question" is empty',
        'row 5: no column "question"',
        'row 6: column "question" is neither text nor',
    ):
        assert mistake in errors


def test_a_missing_recipe_and_wrong_settings_on_the_command_line(outdo, tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    done = outdo("train", tmp_path / "recipe.tmol", "optim.lr=fast", "stepz=3")
    assert "recipe.tmol: no such file; did you mean recipe.toml?" in done.error
    assert "optim.lr: expected a number" in done.error
    assert "stepz: unknown setting; did you mean steps?" in done.error
    assert "required" not in done.error  # the file that is missing may have model and data


@pytest.mark.parametrize("command", ["train", "check"])
def test_required_settings_are_named_if_nothing_is_given(outdo, command):
    done = outdo(command)
    assert "model: required" in done.error
    assert "data.path: required" in done.error


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
