"""Several replicas whose first one samples ahead of training: the tokens of one process, and they end together."""

import json
import os
import signal
from pathlib import Path

import pytest
from ahead_cases import ACROSS, COPYING, sampled_by, write_ahead
from kill_cases import assert_same
from run_cases import cold, family, outdo_, saved, steps_done, timeless, together, wait_for_end, wait_until
from test_replicated_runs import finished, second_of, tokens, weights

pytestmark = pytest.mark.release

LAG = 2
STEPS = 8
AHEAD = (
    f"steps={STEPS}",
    f"train.max_staleness={LAG}",
    "train.dynamic_sampling=1",
    "eval.every=3",
    "checkpoint.every=2",
    "optim.lr=1e-4",
)
DIVIDED = ("cluster.replicas=2", "cluster.shard=true")
WAYS = {
    "divided": (),
    "divided-adapter": ("train.adapter=lora",),
    "divided-across-updates": (),
    "critic": ("train.objective=ppo", "train.advantage=gae", "train.dynamic_sampling=0"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home, in which a run of two replicas was not disturbed."""
    home = write_ahead(tmp_path_factory.mktemp("ahead-replicas"))
    together(home, "train", "recipe.toml", "run=./divided", COPYING, *AHEAD, *DIVIDED)
    (home / "sampled.txt").rename(home / "divided.txt")
    return home


@pytest.mark.parametrize(
    "way", ["divided", *(pytest.param(name, marks=pytest.mark.long) for name in WAYS if name != "divided")]
)
def test_two_replicas_sample_ahead_what_one_process_does(home: Path, way: str):
    alone, both = home / f"alone-{way}", home / way
    engine = ACROSS if way.endswith("across-updates") else COPYING
    outdo_(home, "train", "recipe.toml", f"run=./{alone.name}", engine, *AHEAD, *WAYS[way])
    if not both.exists():
        replicas = DIVIDED if way.startswith("divided") else DIVIDED[:1]
        together(home, "train", "recipe.toml", f"run=./{both.name}", engine, *AHEAD, *replicas, *WAYS[way])
    for step in range(1, STEPS + 1):
        assert tokens(alone, step) == tokens(both, step)
    mine = weights(both)
    for key, value in weights(alone).items():
        assert (mine[key] - value).abs().max() <= 3e-6, key
    assert summary_of(both) == summary_of(alone)
    assert [line.keys() for line in timeless(alone)] == [line.keys() for line in timeless(both)]
    assert [line["staleness/max"] for line in timeless(both)] == [min(step, LAG) for step in range(STEPS)]


def test_a_batch_is_sampled_once_for_all_replicas(home: Path):
    lines = [tuple(map(int, line.split())) for line in (home / "divided.txt").read_text().splitlines()]
    first_rounds = sorted(set(lines))
    assert first_rounds == [(step, max(0, step - 1 - LAG)) for step in range(1, STEPS + 1)]
    assert len(lines) <= 2 * STEPS  # dynamic sampling asks at most once more


@pytest.mark.parametrize(
    "ending", ["SIGTERM", *(pytest.param(name, marks=pytest.mark.long) for name in ("second replica", "lost"))]
)
@pytest.mark.long
def test_replicas_that_sample_ahead_end_together_and_resume_exactly(home: Path, ending: str):
    """Step 6 is sampled by the weights after step 3, which have changed when the run is resumed."""
    run = home / ending.replace(" ", "-")
    for left in ("sampled.txt", "mended"):
        (home / left).unlink(missing_ok=True)
    fault = {"SIGTERM": ",hangs=6", "lost": ",lost=6"}.get(ending, "")
    engine = f'engine={{name="engine.py:Copying"{fault}}}'
    command = cold(home, "train", "recipe.toml", f"run=./{run.name}", engine, *AHEAD, *DIVIDED)
    if ending == "second replica":
        wait_until(lambda: steps_done(run) >= 4, command)
        processes = family(command.pid)
        os.kill(second_of(processes), signal.SIGKILL)
        expected = 75
    else:
        wait_until(lambda: (6, 3) in sampled_by(home), command)
        processes = family(command.pid)
        if ending == "SIGTERM":
            command.terminate()
        expected = 143 if ending == "SIGTERM" else 75
    said, status = finished(command)
    assert status == expected, said
    wait_for_end(processes)
    (home / "mended").touch()
    before = len(sampled_by(home))
    together(home, "resume", run.name)
    assert saved(run)[-1] == STEPS
    assert all(version == max(0, step - 1 - LAG) for step, version in sampled_by(home)[before:])
    assert_same(run, home / "divided")


def summary_of(run: Path) -> object:
    return json.loads((run / "summary.json").read_text())["questions"]
