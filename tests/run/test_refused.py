"""What a run does not do: go on as another run, from what is broken, or beside itself."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_cases import contents, outdo_, saved, steps_done, weights, write_rows

from outdo.config.file import load
from outdo.config.recipe import Recipe
from outdo.models.loading import load_classifier, load_tokenizer
from outdo.run.check.preflight import Report
from outdo.run.checkpoints.checkpoint import load_state, save
from outdo.run.display import Display
from outdo.run.folder.run_folder import RunFolder
from outdo.run.training import start
from outdo.utils.errors import DiskFullError, UserError

OPTIMISER = "state/tensors.safetensors"


@pytest.fixture
def copy(home: Path, six_steps: Path, request: pytest.FixtureRequest) -> Path:
    """The run of six steps, for one test to change; its last two checkpoints are kept."""
    return shutil.copytree(six_steps, home / request.node.name.replace("[", "-").rstrip("]"))


def history(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def rewrite_state(run: Path, step: int, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write a checkpoint anew with another state, as another version of a library would have saved it."""
    old = run / "checkpoints" / f"step_{step:06d}"
    state = load_state(old)
    change(state)
    shutil.move(old, run / "old")
    shutil.rmtree(run / "old/state")

    def write_model(path: Path) -> None:
        shutil.copytree(run / "old", path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))

    save(run / "checkpoints", step, write_model, state)


def test_a_changed_setting_is_refused_with_the_difference(home, six_steps):
    before = contents(six_steps)
    said = outdo_(home, "resume", "six", "optim.lr=2e-3", "seed=7", "steps=9", status=2)
    assert "optim.lr: 0.001 in the saved run, 0.002 now" in said
    assert "seed: 0 in the saved run, 7 now" in said
    assert "steps:" not in said
    assert contents(six_steps) == before


def test_changed_questions_are_refused(own_home):
    outdo_(own_home, "train", "recipe.toml", "run=./run", "steps=2")
    write_rows(own_home / "train.jsonl", [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"}])
    said = outdo_(own_home, "resume", "run", "steps=4", status=2)
    assert "data.path: the file has changed since the run was started" in said
    assert "data.eval_path" not in said
    assert saved(own_home / "run") == [1, 2]


def test_an_edited_recipe_is_compared_with_the_checkpoint(home, copy):
    """The recipe in the run folder is a file that anybody can edit: the checkpoint knows what it was saved by."""
    recipe = copy / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("lr = 0.001", "lr = 0.002").replace("seed = 0", "seed = 7"))
    said = outdo_(home, "resume", copy.name, "steps=9", status=2)
    assert "optim.lr: 0.001 in the saved run, 0.002 now; this changes the run" in said
    assert "seed: 0 in the saved run, 7 now; this changes the run" in said
    assert f"`outdo resume {copy.name} --changed` if they are meant" in said
    assert "steps:" not in said
    assert steps_done(copy) == 6


def test_changed_code_of_a_reward_or_of_a_module_beside_it_is_refused(own_home):
    score = own_home / "score.py"
    score.write_text(f"from helping import half\n{score.read_text()}")
    (own_home / "helping.py").write_text("half = 0.5\n")
    outdo_(own_home, "train", "recipe.toml", "run=./run", "steps=2")
    (own_home / "helping.py").write_text("half = 0.25\n")
    said = outdo_(own_home, "resume", "run", "steps=4", status=2)
    assert f"{own_home / 'helping.py'}: the code of the run has changed" in said
    assert "score.py: the code" not in said
    (own_home / "helping.py").write_text("half = 0.5\n")
    score.write_text(f"{score.read_text()}\n# edited\n")
    said = outdo_(own_home, "resume", "run", "steps=4", status=2)
    assert f"{score}: the code of the run has changed" in said
    assert saved(own_home / "run") == [1, 2]


def test_a_change_that_is_meant_continues_the_run_and_stands_in_its_history(own_home):
    outdo_(own_home, "train", "recipe.toml", "run=./run", "steps=2")
    run = own_home / "run"
    with (own_home / "score.py").open("a") as file:
        file.write("# edited\n")
    said = outdo_(own_home, "resume", "run", "--changed", "steps=3", "optim.lr=5e-4")
    assert "optim.lr: 0.001 in the saved run, 0.0005 now; this changes the run" in said
    started, resumed = history(run)
    assert (started["after_step"], started["changes"]) == (0, [])
    assert resumed["after_step"] == 2
    assert [line.split(": ")[0] for line in resumed["changes"]] == ["steps", "optim.lr", str(own_home / "score.py")]
    assert started["outdo"] == resumed["outdo"]
    assert started["command"][1] == "train"
    assert resumed["command"][1] == "resume"
    outdo_(own_home, "resume", "run", "steps=4")  # the checkpoint of step 3 was saved by the changed recipe
    assert history(run)[-1]["changes"] == ["steps: 3 in the saved run, 4 now"]


def test_other_versions_and_hardware_are_shown_and_do_not_stop_a_run(home, copy):
    def older(state: dict[str, Any]) -> None:
        state["identity"]["versions"].update(torch="1.0")
        state["identity"]["process"].update(hardware="abacus")

    rewrite_state(copy, 6, older)
    said = outdo_(home, "resume", copy.name, "steps=7")
    assert 'torch: "1.0" in the saved run, ' in said
    assert 'hardware: "abacus" in the saved run, ' in said
    assert "with other versions, hardware, the steps from here on can differ in their last bits" in said
    assert "missing" not in said
    assert f"runs code that the recipe names: {home / 'score.py'}:score" in said  # it may be a stranger's
    assert saved(copy)[-1] == 7


def test_a_run_of_earlier_versions_goes_on_in_one_process(home: Path, copy: Path):
    """What several workers added up, one process adds up in another order."""
    recipe = copy / "recipe.toml"
    recipe.write_text(f"workers = 2\n{recipe.read_text()}")
    rewrite_state(copy, 6, lambda state: state["identity"].update(recipe=recipe.read_text()))
    said = outdo_(home, "resume", copy.name, "steps=7")
    assert "workers: 2 in the saved run, unset now" in said
    assert "with other workers, the steps from here on can differ in their last bits" in said
    assert saved(copy)[-1] == 7
    assert "workers" not in recipe.read_text()


@pytest.mark.release
def test_other_threads_are_shown_with_what_they_change(home, copy):
    said = outdo_(home, "resume", copy.name, "steps=7", "threads=2")
    assert "threads: 1 in the saved run, 2 now" in said
    assert "with other threads, the steps from here on can differ in their last bits" in said
    assert "last bits" not in outdo_(home, "resume", copy.name, "steps=8")
    told = outdo_(home, "doctor", copy.name)
    assert "note: step 7: the run was resumed with other threads 1 before, 2 then." in told


def test_a_changed_reward_model_is_refused(own_home):
    judge = own_home / "judge"
    load_classifier(own_home / "model", head_seed=0).save_pretrained(judge)
    load_tokenizer(own_home / "model").save_pretrained(judge)
    reward = 'rewards={name = "reward_model", path = "judge"}'
    outdo_(own_home, "train", "recipe.toml", "run=./run", "steps=1", "eval.every=0", "data.eval_path=", reward)
    assert saved(own_home / "run") == [1]
    load_classifier(own_home / "model", head_seed=1).save_pretrained(judge)
    said = outdo_(own_home, "resume", "run", "steps=2", status=2)
    assert f"{judge}: the reward model has changed since the run was started; this changes the run" in said
    load_classifier(own_home / "model", head_seed=0).save_pretrained(judge)
    outdo_(own_home, "resume", "run", "steps=2")
    assert saved(own_home / "run")[-1] == 2


def test_a_changed_method_that_the_state_does_not_fit_is_an_error_with_the_checkpoint(home, copy):
    objective = 'train.objective={name = "grpo", beta = 0.1}'  # it has a reference, which the state does not hold
    said = outdo_(home, "resume", copy.name, "--changed", "steps=7", objective, status=1)
    assert f"{copy.name}/checkpoints/step_000006: its state does not fit the recipe: a reference is needed" in said


def test_deleted_metrics_and_records_are_noticed(home, copy):
    lines = (copy / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_bytes(b"".join(lines[:1] + lines[4:]))
    (copy / "tokens/step_000002.parquet").unlink()
    said = outdo_(home, "resume", copy.name, "steps=7")
    assert f"{copy.name}/metrics.jsonl: the metrics of the steps 2-4 are missing" in said
    assert f"{copy.name}/tokens: 1 of the 6 records are missing: step 2" in said


@pytest.mark.parametrize("name", ["metrics.jsonl", "lock"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(home, copy, name):
    """A run folder may come from somebody else."""
    (copy / name).unlink(missing_ok=True)
    os.mkfifo(copy / name)
    said = outdo_(home, "resume", copy.name, "steps=7", status=1)
    assert f"{copy.name}/{name}: expected a file, and this is a folder, a pipe or a device" in said


def test_a_broken_checkpoint_is_reported_and_the_one_before_it_used(home, six_steps, copy):
    path = copy / "checkpoints/step_000006" / OPTIMISER
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    said = outdo_(home, "resume", copy.name)
    assert f"not used: {copy.name}/checkpoints/step_000006/{OPTIMISER}: " in said
    assert "resumed after step 5 of 6" in said
    assert weights(copy, 6) == weights(six_steps, 6)


def test_a_folder_with_a_run_is_refused_and_one_in_use_with_the_process_that_uses_it(home, copy):
    said = outdo_(home, "train", "recipe.toml", f"run=./{copy.name}", status=2)
    assert f"holds a run already; `outdo resume {copy.name}` continues it" in said
    with RunFolder(copy):
        assert f"in use by process {os.getpid()} " in outdo_(home, "resume", copy.name, status=1)


def test_a_run_whose_checkpoints_do_not_fit_on_the_disk_is_refused_before_its_first_step(own_home, monkeypatch):
    monkeypatch.chdir(own_home)
    usage = shutil.disk_usage(own_home)._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DiskFullError, match=r"the checkpoints will take about .* GiB, and 0.00 GiB are free"):
        start(Report(recipe=load("recipe.toml"), errors=()), own_home / "run", Display(live=False))
    assert steps_done(own_home / "run") == 0


def test_a_folder_without_a_run_cannot_be_resumed(home):
    assert "no run is there" in outdo_(home, "resume", "nothing-here", status=2)
    assert not (home / "nothing-here").exists()


def test_a_recipe_that_the_user_has_written_is_no_run_and_stays_as_it_is(own_home):
    before = (own_home / "recipe.toml").read_text()
    said = outdo_(own_home, "resume", "./", "steps=2", status=2)
    assert "no run is there: it has a recipe.toml, but no history.jsonl" in said
    assert "`outdo train recipe.toml` begins a run" in said
    assert (own_home / "recipe.toml").read_text() == before
    assert not (own_home / "history.jsonl").exists()


def test_a_new_run_leaves_the_metrics_of_another_program_as_they_are(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nno line of outdo')
    with pytest.raises(UserError, match=r"metrics\.jsonl, which exists already"):
        start(
            Report(recipe=Recipe.model_validate({"model": "m", "data": {"path": "x.jsonl"}}), errors=()),
            tmp_path,
            Display(live=False),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\nno line of outdo'


def test_steps_that_are_trained_already_and_another_folder_are_refused(home, copy):
    before = contents(copy)
    said = outdo_(home, "resume", copy.name, "steps=2", "run=other", "seed=7", status=2)
    assert "steps = 2: the run has finished step 6; expected 6 or more" in said
    assert f"run = other: the run continues in its folder {copy.name}; rename that folder" in said
    assert "seed: 0 in the saved run, 7 now" in said
    assert contents(copy) == before


def test_a_run_whose_folder_was_renamed_continues_under_its_new_name(home, copy):
    said = outdo_(home, "train", "recipe.toml", f"run=./{copy.name}", "steps=6", "--resume")
    assert f'run: "./six" in the saved run, "./{copy.name}" now' in said
    assert "complete: step 6 was the last" in said
