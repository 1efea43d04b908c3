"""What small shell scripts start, in forms beside those of the table of configurations."""

from pathlib import Path

import pytest

from outdo.extras.convert.reading import Configuration
from outdo.extras.convert.sources import read_openrlhf, read_trl, read_verl

TRAINING = "python3 -m verl.trainer.main_ppo data.train_batch_size=8"


def read(text: str, folder: Path) -> Configuration:
    (folder / "run.sh").write_text(text, encoding="utf-8")
    return read_verl(folder / "run.sh", [])


@pytest.mark.parametrize(
    "rest", ["", "tail -f train.log &\n", "while true; do nvidia-smi; sleep 60; done &\n", "exit 0\n"]
)
def test_a_training_in_the_background_is_read(rest: str, tmp_path: Path) -> None:
    before = rest if "&" in rest else ""
    in_the_background = f"nohup bash -c 'timeout 1 yes >/dev/null; sleep 9; {TRAINING}' > log.txt 2>&1 &\n"
    assert read(before + in_the_background + rest, tmp_path).written == {"data.train_batch_size": 8}


def test_flags_of_openrlhf_in_the_background_are_read(tmp_path: Path) -> None:
    flags = 'ARGS="--pretrain org/base"\nARGS+=" --lora_rank 8"\n'
    command = "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray $ARGS &"
    (tmp_path / "run.sh").write_text(flags + command, encoding="utf-8")
    assert read_openrlhf(tmp_path / "run.sh", []).written == {"pretrain": "org/base", "lora_rank": 8}


def test_the_path_of_a_folder_that_is_not_here_is_read(tmp_path: Path) -> None:
    text = f'{TRAINING} actor_rollout_ref.model.path="$(realpath "$(dirname "$0")/models/base")"'
    assert read(text, tmp_path).written["actor_rollout_ref.model.path"] == str(tmp_path / "models" / "base")


def test_words_that_nobody_sets_are_missing(tmp_path: Path) -> None:
    assert read(f"{TRAINING} $EXTRA", tmp_path).missing == ["$EXTRA: words of the command"]


@pytest.mark.parametrize("entry", ["recipe.dapo.main_dapo", "recipe.dapo.src.main_dapo", "my.main_own"])
def test_the_command_of_another_recipe_is_found(entry: str, tmp_path: Path) -> None:
    assert read(f"python3 -m {entry} data.train_batch_size=8", tmp_path).written == {"data.train_batch_size": 8}


@pytest.mark.parametrize(
    ("launch", "processes"),
    [
        ("accelerate launch --multi_gpu --num_processes 4", 4),
        ("accelerate launch --num_machines 2 --num_processes=8", 8),
        ("torchrun --nproc_per_node 2 -m", 2),
        ("torchrun --nnodes=2 --nproc-per-node=4", 8),
        ("deepspeed --num_nodes 2 --num_gpus 2", 4),
        ("python", None),
    ],
)
def test_the_processes_of_a_launcher_are_read(launch: str, processes: int | None, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{launch} trl grpo --beta 0.1", encoding="utf-8")
    reading = read_trl(tmp_path / "run.sh", [])
    assert (reading.processes, reading.remarks) == (processes, [])


@pytest.mark.parametrize(
    "launch", ["accelerate launch", "accelerate launch --num_processes $N", "torchrun --nnodes 1:4"]
)
def test_a_number_of_processes_that_nobody_knows_is_said(launch: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{launch} trl grpo --beta 0.1", encoding="utf-8")
    reading = read_trl(tmp_path / "run.sh", [])
    assert reading.processes is None
    assert reading.remarks == ["the number of processes is not known: the batch is that of --processes, by default 1"]
