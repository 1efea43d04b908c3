"""All weights to a real vLLM on another machine, and what may happen on the way.

The machines are two network namespaces: see `tests/support/two_machines.py`. `make vllm` creates vLLM's environment.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_cases import metrics, wait_for_end, wait_until, write_home
from test_vllm import PYTHON
from two_machines import WHY_NOT, Machine, two_machines

from outdo.testing import tiny_model

PAUSED_RUN = Path(__file__).parents[2] / "support" / "paused_run.py"
SERVE = (
    *("-m", "vllm.entrypoints.openai.api_server", "--model", "model", "--host", "10.77.0.2", "--enable-scale-out"),
    *("--middleware", "outdo.extras.vllm.receiver.Receiver", "--logprobs-mode", "processed_logprobs"),
    *("--worker-extension-cls", "outdo.extras.vllm.server.Loader", "--dtype", "float32", "--enforce-eager"),
)
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "10.77.0.2",
}
ENGINE = 'engine={name = "vllm", url = "http://10.77.0.2:8000"}'

pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.skipif(
        not Path(PYTHON).is_file() and not os.environ.get("CI_NEEDS_VLLM"), reason=f"no vLLM: there is no {PYTHON}"
    ),
    pytest.mark.release,
]


class Machines:
    """The trainer's machine, and that of a server of vLLM, which sees no file that the trainer writes into memory."""

    def __init__(self, home: Path, temporary: str, trainer: Machine, server: Machine) -> None:
        self.home = home
        self.environment = ENVIRONMENT | {"TMPDIR": temporary}
        self.trainer = trainer
        self.server = server
        server.run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")

    def serve(self) -> None:
        """Start the server with the model that is in its folder, and wait until it answers."""
        log = self.home / "server.log"
        log.write_text("")
        command = ("sh", "-c", f'exec "$@" > {log} 2>&1', "sh", PYTHON, *SERVE)
        self.vllm = self.server.popen(*command, cwd=self.home, **self.environment)
        wait_until(lambda: time.sleep(0.5) or "Application startup complete" in log.read_text(), self.vllm)
        assert self.vllm.poll() is None, log.read_text()

    def kill_server(self) -> None:
        processes = self.server.processes()
        for process in processes:
            os.kill(process, signal.SIGKILL)
        wait_for_end(processes)
        self.vllm.communicate()

    def train(self, run: str, place: str = "nowhere 0", **variables: str) -> "subprocess.Popen[str]":
        """Start a run that stops at a place: see `tests/support/paused_run.py`."""
        arguments = ("train", "recipe.toml", f"run=./{run}", "steps=3", "eval.every=0", ENGINE)
        variables |= {"PLACE": place, "GATE": str(self.home / run)}
        return self.trainer.popen(sys.executable, str(PAUSED_RUN), *arguments, cwd=self.home, **variables)

    def reach(self, run: str, command: "subprocess.Popen[str]") -> None:
        """Wait until the run is at its place."""
        wait_until(self.home.joinpath(f"{run}.reached").exists, command)
        assert command.poll() is None, command.communicate()[0]

    def go_on(self, run: str) -> None:
        self.home.joinpath(f"{run}.open").touch()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    home = write_home(tmp_path_factory.mktemp("home"))
    tiny_model(home / "model", hidden=128)
    # vLLM has sockets in the temporary folder, whose paths have to be short.
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary, two_machines(home) as pair:
        found = Machines(home, temporary, *pair)
        found.serve()
        yield found
        found.kill_server()


@pytest.fixture(scope="module")
def undisturbed(machines: Machines) -> list[float]:
    """The rewards of each step of a run without faults."""
    said, _ = (command := machines.train("undisturbed")).communicate()
    assert command.returncode == 0, said
    assert "the engine is restarted" not in said
    lines = metrics(machines.home / "undisturbed")
    weights = (machines.home / "model" / "model.safetensors").stat().st_size
    assert [line["engine/delivery_bytes"] >= weights for line in lines] == [True] * 3
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-4 for line in lines)
    return rewards(machines, "undisturbed")


def rewards(machines: Machines, run: str) -> list[float]:
    return [line["reward"] for line in metrics(machines.home / run)]


def test_all_weights_reach_a_server_on_another_machine_in_each_step(undisturbed: list[float]):
    assert len(set(undisturbed)) > 1


def test_a_network_that_is_cut_within_a_delivery_and_comes_back_changes_nothing(machines: Machines, undisturbed):
    """The second delivery is cut in the middle of its pieces."""
    command = machines.train("cut", "piece 20")
    machines.reach("cut", command)
    machines.server.pull_the_plug()
    machines.go_on("cut")
    lines = iter(command.stdout.readline, "")
    restarted = next(line for line in lines if "the engine is restarted" in line)
    machines.server.put_the_plug_back()
    said, _ = command.communicate()
    assert command.returncode == 0, said
    print(restarted)
    assert "/model.safetensors/" in restarted
    assert "no answer" in restarted
    assert rewards(machines, "cut") == undisturbed


def test_a_network_that_does_not_come_back_ends_the_run_with_one_sentence(machines: Machines):
    command = machines.train("lost", "piece 20", WAIT="1")
    machines.reach("lost", command)
    machines.server.pull_the_plug()
    machines.go_on("lost")
    said, _ = command.communicate()
    machines.server.put_the_plug_back()
    print(said)
    assert command.returncode == 75
    assert "Traceback" not in said
    assert "no answer" in said.splitlines()[-1]


def test_a_delivery_that_the_server_does_not_load_is_found_by_the_proof(machines: Machines):
    """Its answers have the new label, and come from the old weights."""
    said, _ = (command := machines.train("old", "load 2")).communicate()
    print(said)
    assert command.returncode == 1
    assert "the engine still has the weights after 0 optimiser steps: this update did not reach it" in said
    assert len(metrics(machines.home / "old")) <= 1


def test_a_server_that_was_started_again_with_old_weights_gets_the_new_ones_before_it_answers(
    machines: Machines, undisturbed
):
    """It ends after the proof of the second delivery, and answers again before the trainer has noticed.

    The calls of the engine before are: a proof, two evaluations, the first step, another proof.
    """
    command = machines.train("again", "generate 6")
    machines.reach("again", command)
    machines.kill_server()
    machines.serve()
    machines.go_on("again")
    said, _ = command.communicate()
    print(said)
    assert command.returncode == 0, said
    before, restarted, after = said.partition("the engine is restarted")
    assert "step 1/3" in before
    assert "the answer is not of the weights that were sent last" in after
    assert restarted not in after
    assert rewards(machines, "again") == undisturbed
