"""The templates of `examples/slurm` run as they are, with stand-ins for the commands of SLURM."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import slurm_stand_in
from kill_cases import assert_same
from run_cases import SOURCE, cold, command_line, family, of_process, steps_done, wait_until
from test_replicated_runs import finished
from two_machines import WHY_NOT, two_machines

pytestmark = pytest.mark.long

TEMPLATES = Path(SOURCE).parent / "examples" / "slurm"
SETTINGS = ("steps=12", "eval.every=6", "checkpoint.every=2", "cluster.timeout=60")


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Path:
    """Two replicas without SLURM."""
    said, status = finished(cold(home, "train", "recipe.toml", "run=./no-slurm", *SETTINGS, "cluster.replicas=2"))
    assert status == 0, said
    return home / "no-slurm"


def submit(
    home: Path, template: str, run: str, options: Sequence[str], *settings: str, nodes: str = ""
) -> "subprocess.Popen[str]":
    """Submit a job; `nodes` are the holders of the namespaces that are its nodes."""
    job = [sys.executable, slurm_stand_in.__file__, "sbatch", *options, str(TEMPLATES / f"{template}.sbatch")]
    return subprocess.Popen(
        [*job, "recipe.toml", f"run=./{run}", *SETTINGS, *settings],
        cwd=home,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE, "COLUMNS": "300", slurm_stand_in.NODES: nodes},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def step_of(job: "subprocess.Popen[str]") -> int:
    """The process of `srun`, which gets the signals for a step of the job."""
    return next(each for each in family(job.pid) if b"\0srun\0" in command_line(each))


def replica(job: "subprocess.Popen[str]", rank: int) -> int:
    """The process of a replica."""

    def is_it(process: int) -> bool:
        is_outdo = b"outdo" in command_line(process)
        return is_outdo and b"\0RANK=%d\0" % rank in b"\0" + of_process(process, "environ")

    return next(each for each in family(job.pid) if is_it(each))


def test_a_job_of_one_node_whose_time_is_over_goes_on_in_the_next_one(home: Path, undisturbed: Path):
    run = home / "one-node"
    job = submit(home, "one_node", run.name, ["--gpus-per-node=2"])
    wait_until(lambda: steps_done(run) >= 4, job)
    os.kill(step_of(job), signal.SIGHUP)
    said, status = finished(job)
    assert status == 0, said
    assert said.count("no problem: 2 processes can run together") == 2  # one for each start of the job
    assert said.count("resumed after step") == 1
    assert_same(run, undisturbed)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_job_of_two_nodes_goes_on_after_a_signal_and_after_a_killed_process(
    home: Path, undisturbed: Path, tmp_path: Path
):
    run = home / "two-nodes"
    with two_machines(tmp_path, "127.0.1.1") as machines:
        nodes = " ".join(str(each.holder) for each in machines)
        job = submit(home, "several_nodes", run.name, ["--nodes=2", "--ntasks-per-node=1"], nodes=nodes)
        wait_until(lambda: steps_done(run) >= 3, job)
        os.kill(step_of(job), signal.SIGHUP)
        wait_until(lambda: steps_done(run) >= 7, job)
        os.kill(replica(job, 1), signal.SIGKILL)
        said, status = finished(job)
        assert status == 0, said
        assert said.count("no problem: 2 processes can run together") == 3
        assert said.count("resumed after step") == 2
        assert_same(run, undisturbed)
        assert not any(machine.processes() for machine in machines)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_job_of_torchrun_goes_on_after_a_killed_process(home: Path, undisturbed: Path, tmp_path: Path):
    run = home / "by-slurm-and-torchrun"
    with two_machines(tmp_path, "127.0.1.1") as machines:
        nodes = " ".join(str(each.holder) for each in machines)
        job = submit(home, "torchrun", run.name, ["--nodes=2", "--gpus-per-node=1"], nodes=nodes)
        wait_until(lambda: steps_done(run) >= 5, job)
        os.kill(replica(job, 1), signal.SIGKILL)
        said, status = finished(job)
        assert status == 0, said
        assert "resumed after step" in said
        assert_same(run, undisturbed)
        assert not any(machine.processes() for machine in machines)


@pytest.mark.parametrize(
    ("template", "options"),
    [("one_node", ["--gpus-per-node=2"]), ("several_nodes", ["--nodes=1", "--ntasks-per-node=2"])],
)
def test_wrong_input_does_not_go_back_into_the_queue(home: Path, template: str, options: list[str]):
    job = submit(home, template, "wrong", options, "model=no-such-model")
    said, status = finished(job)
    assert status == 2, said
    assert "no folder 'no-such-model'" in said
    assert said.count("no problem: 2 processes can run together") == 1  # the job was started once
