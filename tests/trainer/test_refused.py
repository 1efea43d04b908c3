"""What a run does not do: go on as another run, from what is broken, or beside itself."""

import os
import shutil
from pathlib import Path

import pytest
from run_cases import Command, contents, outdo_, saved, wait_until, weights, write_rows

from outdo.storage.run_folder import RunFolder

OPTIMISER = "state/tensors.safetensors"


@pytest.fixture
def copy(home: Path, six_steps: Path, request: pytest.FixtureRequest) -> Path:
    """The run of six steps, for one test to change; its last two checkpoints are kept."""
    return shutil.copytree(six_steps, home / request.node.name.replace("[", "-").rstrip("]"))


def damage(run: Path, step: int, name: str) -> None:
    path = run / "checkpoints" / f"step_{step:06d}" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


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


@pytest.mark.parametrize("fault", ["damaged", "missing"])
def test_a_broken_checkpoint_is_reported_and_the_one_before_it_used(home, six_steps, copy, fault):
    if fault == "missing":
        (copy / "checkpoints/step_000006" / OPTIMISER).unlink()
    else:
        damage(copy, 6, OPTIMISER)
    said = outdo_(home, "resume", copy.name)
    assert f"not used: {copy.name}/checkpoints/step_000006/{OPTIMISER}: " in said
    assert "resumed after step 5 of 6" in said
    assert weights(copy, 6) == weights(six_steps, 6)


def test_without_a_whole_checkpoint_nothing_is_started(home, copy):
    for step in saved(copy):
        damage(copy, step, OPTIMISER)
    before = contents(copy)
    said = outdo_(home, "resume", copy.name, status=1)
    assert "no checkpoint is whole" in said
    assert contents(copy) == before


def test_a_folder_in_use_is_refused_with_the_process_that_uses_it(home, copy):
    with RunFolder(copy):
        assert f"in use by process {os.getpid()} " in outdo_(home, "resume", copy.name, status=1)


def test_a_second_run_in_the_same_folder_is_refused(home, six_steps):
    before = contents(six_steps)
    said = outdo_(home, "train", "recipe.toml", "run=./six", status=1)
    assert "holds a run already; `outdo resume six` continues it" in said
    assert contents(six_steps) == before


def test_a_folder_without_a_run_cannot_be_resumed(home):
    assert "no run is there" in outdo_(home, "resume", "nothing-here", status=2)
    assert not (home / "nothing-here").exists()


def test_no_reward_worker_survives_a_killed_trainer(own_home):
    (own_home / "score.py").write_text(
        "import os\n"
        "def score(completion, answer):\n"
        "    open(f'worker-{os.getpid()}', 'w').close()\n"
        "    return len(completion) % 3\n"
    )
    command = Command(own_home, "train", "recipe.toml", "run=./run", "steps=100000", "checkpoint.every=1000")
    wait_until(lambda: len(list(own_home.glob("worker-*"))) == 2, command)  # one tried the reward, one trains
    workers = [int(path.name.removeprefix("worker-")) for path in own_home.glob("worker-*")]
    assert any(map(is_running, workers))
    command.process.kill()
    command.wait()
    wait_until(lambda: not any(map(is_running, workers)))


def is_running(pid: int) -> bool:
    """Also False for a process that has ended and that nobody has asked for its status."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z" if Path("/proc").exists() else not os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
