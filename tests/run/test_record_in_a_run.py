"""The record that a run leaves behind: what the metrics say follows from it, and no fault of the disk loses a run."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kill_cases import assert_same
from run_cases import MAY_MOUNT, metrics, outdo_, write_rows
from small_disk import full_and_then_free

from outdo.extras.record.parquet import recorded_steps

NOISE = 1e-5
"""nats; a smaller change of a log-probability is none"""

CERTAIN = 1e-6
"""nats; as good as a probability of 1"""

PER_TOKEN = [
    *("token_ids", "loss_mask", "old_logprobs", "new_logprobs", "bound", "clip"),
    *("policy_push", "kl_pull", "net_push", "share"),
]
METHODS = {
    "grpo with a pull": ['train.objective={name = "grpo", beta = 0.3}', "train.passes=2", "train.minibatches=2"],
    "targets, a share measured": ["train.objective=target", "train.advantage=sign", "record.after=0.3"],
}


FAULTS = '''
"""GRPO, and a fault in the middle of the third step; the second time there is none."""

import os
import time
from pathlib import Path

import outdo.utils.atomic
from outdo.run.folder.run_folder import RunFolder
from outdo.algorithms.objectives.presets import grpo

append = RunFolder.append_metrics


def first_time(mark):
    there = Path(mark).exists()
    Path(mark).touch()
    return not there


class FullDisk:
    def __getattr__(self, name):
        return self.open if name == "open" else getattr(os, name)

    def open(self, path, *flags):
        if ".step_000003.parquet" in str(path) and first_time("full"):
            raise OSError(28, "No space left on device")
        return os.open(path, *flags)


def full_disk():
    outdo.utils.atomic.os = FullDisk()
    return grpo(beta=0.0)


def killed_when_there_is(*files):
    """Both are written in the background."""
    while not all(file.exists() for file in files):
        time.sleep(0.01)
    os._exit(9)


def killed_before_its_line():
    def dies(folder, step, metrics):
        if step == 3 and first_time("killed"):
            killed_when_there_is(folder.path / "checkpoints/step_000002")
        append(folder, step, metrics)

    RunFolder.append_metrics = dies
    return grpo(beta=0.0)


def killed_after_its_line():
    def dies(folder, step, metrics):
        append(folder, step, metrics)
        if step == 3 and first_time("killed"):
            record = folder.path / "tokens/step_000003.parquet"
            killed_when_there_is(folder.path / "checkpoints/step_000002", record)

    RunFolder.append_metrics = dies
    return grpo(beta=0.0)
'''


def trained(home: Path, run: Path, *settings: str, status: int = 0) -> str:
    """A short run of `home`'s recipe, its tokens all measured; what it said."""
    usual = ("record.after=all", "eval.every=0", "checkpoint.keep=9")
    return outdo_(home, "train", "recipe.toml", f"run={run}", *usual, *settings, status=status)


# ------------------------------------------------------------------------------- what the metrics say, by pandas alone


def tokens_of(run: Path, step: int) -> pd.DataFrame:
    """A row for each trained token of a step; `context` is what was read before it, `token` what was taken."""
    rows = pd.read_parquet(run / "tokens" / f"step_{step:06d}.parquet")
    rows["new_logprobs"] = [
        [None] * len(ids) if new is None else new
        for ids, new in zip(rows["token_ids"], rows["new_logprobs"], strict=True)
    ]
    rows["context"] = [[str(list(ids[:t])) for t in range(len(ids))] for ids in rows["token_ids"]]
    tokens = rows[["group", "measured", "context", *PER_TOKEN]].explode(["context", *PER_TOKEN])
    tokens = tokens[tokens["loss_mask"].astype(bool)].rename(columns={"token_ids": "token"})
    numbers = ["old_logprobs", "new_logprobs", "bound", "policy_push", "kl_pull", "net_push", "share"]
    return tokens.astype(dict.fromkeys(numbers, float))


def with_sums(tokens: pd.DataFrame) -> pd.DataFrame:
    """The same with `push`, and its sum over the group's answers that took the token in the context: `net`."""
    tokens = tokens.assign(push=tokens["policy_push"] + tokens["kl_pull"])
    alike = tokens.groupby(["group", "context", "token"])["push"]
    net, size = alike.transform("sum"), alike.transform(lambda pushes: pushes.abs().sum())
    return tokens.assign(net=net.where(net.abs() > 1e-4 * size, 0.0), part=1 / alike.transform("size"))


def recomputed(tokens: pd.DataFrame) -> dict[str, float]:
    """The metrics of a step that say what moved, by their definitions."""
    spent = (tokens["part"] * tokens["net"].abs()).sum()
    certain = tokens[np.exp(tokens["old_logprobs"]) > 0.99]
    measured = tokens[tokens["measured"] & (tokens["net"] != 0)]
    gone = (measured["new_logprobs"] - measured["old_logprobs"]) * np.sign(measured["net"])
    leverage = measured["part"] * measured["net"].abs() * (1 - np.exp(measured["old_logprobs"]))
    found = {
        "cancelled": 1 - spent / tokens["push"].abs().sum(),
        "certain": (certain["part"] * certain["net"].abs()).sum() / spent,
        "moved_as_intended": leverage[gone > NOISE].sum() / leverage.sum(),
        "moved_wrong_way": leverage[gone < -NOISE].sum() / leverage.sum(),
        "moved_not": leverage[gone.abs() <= NOISE].sum() / leverage.sum(),
        "moved/tokens": measured["part"].sum(),
        "moved/groups": measured["group"].nunique(),
    }
    return found | to_bounds(measured) | out_of_reach(tokens[tokens["push"] != 0])


def out_of_reach(pushed: pd.DataFrame) -> dict[str, float]:
    """Of the pushed tokens with a bound, how many have it out of reach."""
    beyond = (pushed["bound"] > -CERTAIN) | (pushed["clip"] == "unreachable")
    asked = beyond | ((pushed["bound"] - pushed["old_logprobs"]).abs() > NOISE)
    return {"unreachable": pushed["part"][beyond].sum() / pushed["part"][asked].sum()}


def to_bounds(measured: pd.DataFrame) -> dict[str, float]:
    """How far the tokens came whose bound is within reach, and which is not at π_old already."""
    way = measured["bound"] - measured["old_logprobs"]
    within = (measured["bound"] <= -CERTAIN) & (measured["clip"] != "unreachable") & (way.abs() > NOISE)
    within &= measured["push"] * measured["net"] > 0
    some, way = measured[within], way[within]
    gone = (some["new_logprobs"] - some["old_logprobs"]) / way
    mass = np.exp(some["old_logprobs"])
    wanted, moved = np.exp(some["bound"]) - mass, np.exp(some["new_logprobs"]) - mass
    attained = np.minimum(moved * np.sign(wanted), wanted.abs())
    return {
        "target_reached": some["part"][gone >= 0.9].sum() / some["part"].sum(),
        "overshoot": some["part"][gone > 1.1].sum() / some["part"].sum(),
        "attained": (some["part"] * attained).sum() / (some["part"] * wanted.abs()).sum(),
    }


@pytest.fixture(scope="module", params=METHODS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """Five steps, in which some questions are asked twice, and answers to a question may begin alike."""
    folder = tmp_path_factory.mktemp("recorded")
    write_rows(folder / "few.jsonl", [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(6)])
    how = ("steps=5", "train.prompts=2", "train.group_size=8", "sampling.temperature=0.3", "optim.lr=3e-3")
    trained(home, folder / "run", f"data.path={folder}/few.jsonl", *how, "record.top=5", *METHODS[request.param])
    return folder / "run"


def test_what_the_metrics_say_can_be_computed_from_the_record_by_anyone_with_pandas(run: Path) -> None:
    for line in metrics(run):
        expected = recomputed(with_sums(tokens_of(run, line["step"])))
        assert {name: line[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_pushes_add_up_over_the_answers_that_begin_alike(run: Path) -> None:
    shared = 0
    for step in recorded_steps(run):
        tokens = with_sums(tokens_of(run, step))
        noise = 1e-5 * tokens["push"].abs().max()
        np.testing.assert_allclose(tokens["net_push"], tokens["net"], rtol=1e-4, atol=noise)
        np.testing.assert_allclose(tokens["share"], tokens["part"], rtol=1e-6)
        alone = tokens[tokens["part"] == 1]
        np.testing.assert_allclose(alone["net_push"], alone["push"], rtol=1e-4, atol=noise)
        shared += len(tokens) - len(alone)
    assert shared > 20


def test_whether_fresh_answers_followed_can_be_computed_from_the_record(run: Path) -> None:
    last: dict[str, tuple[float, int]] = {}  # mean reward and number of visits
    said = 0
    for line in metrics(run):
        rows = pd.read_parquet(run / "tokens" / f"step_{line['step']:06d}.parquet")
        means = rows.groupby("prompt_id")["reward"].mean()
        rises = [mean - last[name][0] for name, mean in means.items() if name in last]
        last |= {name: (mean, last.get(name, (0, 0))[1] + 1) for name, mean in means.items()}
        assert line.get("transfer/prompts", 0) == len(rises)
        if changed := [rise for rise in rises if rise != 0]:
            said += 1
            assert line["transfer"] == pytest.approx(np.mean(rises))
            assert line["transfer/changed"] == len(changed)
            assert line["transfer/followed"] == pytest.approx(np.mean([rise > 0 for rise in changed]))
            assert line["transfer/visits"] == pytest.approx(np.mean([last[name][1] for name in means.index]))
    assert said


def test_measured_tokens_have_the_most_probable_tokens_before_and_after(run: Path) -> None:
    sampled = 0
    for step in recorded_steps(run):
        rows = pd.read_parquet(run / "tokens" / f"step_{step:06d}.parquet")
        assert rows["new_top"].notna().equals(rows["measured"])
        assert rows["old_top"].notna().equals(rows["measured"])
        for row in rows[rows["measured"]].to_dict("records"):
            for when in ("old", "new"):
                places = zip(
                    row["token_ids"], row["loss_mask"], row[f"{when}_logprobs"], row[f"{when}_top"], strict=True
                )
                for token, trained_on, logprob, top in places:
                    assert (top is not None) == trained_on
                    if top is None:
                        continue
                    found = {each["token_id"]: each["logprob"] for each in top}
                    assert [*found.values()] == sorted(found.values(), reverse=True)
                    assert len(found) == 5
                    assert sum(np.exp([*found.values()])) <= 1 + 1e-5
                    sampled += token in found
                    assert logprob == pytest.approx(found.get(token, logprob), abs=1e-4)
                    assert token in found or logprob <= min(found.values())
    assert sampled > 100


# ------------------------------------------------------------------------------------------- which groups are measured


def measured(run: Path) -> dict[int, list[int]]:
    """The groups of each recorded step that were asked once more after it."""
    found = {step: pd.read_parquet(run / "tokens" / f"step_{step:06d}.parquet") for step in recorded_steps(run)}
    return {step: sorted(set(rows["group"][rows["measured"]])) for step, rows in found.items()}


def test_a_share_of_the_groups_rounded_up_is_measured(home: Path, tmp_path: Path) -> None:
    """0.28 of 25 is 7, and 7.000000000000001 in floating point."""
    write_rows(tmp_path / "many.jsonl", [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(25)])
    how = ("steps=2", "train.prompts=25", "train.group_size=2", "record.after=0.28")
    trained(home, tmp_path / "run", f"data.path={tmp_path}/many.jsonl", *how)
    groups = measured(tmp_path / "run")
    assert [len(each) for each in groups.values()] == [7, 7]
    assert groups[1] != groups[2]


def test_while_a_critic_warms_up_nothing_is_measured(home: Path, tmp_path: Path) -> None:
    how = ("train.objective=ppo", 'train.critic={name = "head", warmup = 2}', "record.top=5")
    trained(home, tmp_path / "run", "steps=3", *how)
    assert measured(tmp_path / "run") == {1: [], 2: [], 3: [0, 1]}
    assert pd.read_parquet(tmp_path / "run/tokens/step_000002.parquet")["old_top"].notna().sum() == 0
    clip = pd.read_parquet(tmp_path / "run/tokens/step_000002.parquet")["clip"].explode()
    assert set(clip) <= {"untrained", "environment"}


# ------------------------------------------------------------------------------------------------------------- faults


@pytest.fixture
def faulty(own_home: Path) -> Path:
    """A home of faults."""
    (own_home / "faults.py").write_text(FAULTS)
    return own_home


@pytest.mark.release
def test_a_disk_full_of_records_loses_no_step(faulty: Path) -> None:
    run = faulty / "run"
    said = trained(faulty, run, "steps=5", "checkpoint.every=20", "train.objective=faults.py:full_disk", status=1)
    assert said.count("No space left on device") == 1
    assert "step_000003.parquet: cannot be written" in said
    assert f"saved after step 4; continue with `outdo resume {run}`" in said  # it was being made meanwhile
    assert f"{run}/tokens: 1 of the 4 records are missing: step 3" in outdo_(faulty, "resume", run)
    assert [line["step"] for line in metrics(run)] == [1, 2, 3, 4, 5]
    assert recorded_steps(run) == [1, 2, 4, 5]


def test_a_disk_full_of_records_prevents_the_checkpoint_of_its_step(faulty: Path) -> None:
    how = ("steps=5", "checkpoint.every=3", "train.objective=faults.py:full_disk")
    said = trained(faulty, faulty / "run", *how, status=1)
    assert "saved after step 3;" in said
    assert [line["step"] for line in metrics(faulty / "run")] == [1, 2, 3]


FILLS_THE_DISK = """
from pathlib import Path

def score(completion, answer):
    metrics = Path("small/run/metrics.jsonl")
    if metrics.exists() and metrics.read_bytes().count(b"\\n") == 2 and not Path("filled").exists():
        Path("filled").touch()
        with open("small/filler", "wb", buffering=0) as file:
            try:
                while file.write(bytes(2**16)):
                    pass
            except OSError:
                pass
    return sum(each.isalnum() for each in completion) / 8
"""


@pytest.mark.skipif(not MAY_MOUNT, reason="no permission to mount a small disk")
def test_a_disk_that_is_full_ends_the_run_in_order_and_with_space_it_continues(own_home: Path) -> None:
    """The disk fills after the second step, which has a checkpoint; no record and no checkpoint can be written then."""
    (own_home / "score.py").write_text(FILLS_THE_DISK)
    settings = ("steps=5", "checkpoint.every=2", "eval.every=0")
    said = full_and_then_free(own_home, settings)
    assert "Traceback" not in said
    for ended in ("train: status 1", "resume on a full disk: status 1", "resume: status 0"):
        assert ended in said, said
    assert re.search(r"small/run/\S+: .*No space left on device", said), said
    assert "resumed after step 2 of 5" in said
    outdo_(own_home, "train", "recipe.toml", "run=./straight", *settings)
    assert_same(own_home / "run", own_home / "straight")


@pytest.mark.release
@pytest.mark.parametrize(("moment", "lines"), [pytest.param("before", 2, marks=pytest.mark.release), ("after", 3)])
def test_killed_next_to_its_line_of_metrics_a_step_is_recorded_once(faulty: Path, moment: str, lines: int) -> None:
    """Killed when the record is there or under way and the line is not, or when the line is, and no checkpoint."""
    how = ("steps=4", "checkpoint.every=2", f"train.objective=faults.py:killed_{moment}_its_line")
    trained(faulty, faulty / "run", *how, status=9)
    assert recorded_steps(faulty / "run")[:2] == [1, 2]
    assert len(metrics(faulty / "run")) == lines
    outdo_(faulty, "resume", "run")
    trained(faulty, faulty / "straight", *how)
    assert_same(faulty / "run", faulty / "straight")


def test_a_file_in_the_place_of_the_records_is_found_before_a_model_is_loaded(home: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/tokens").write_text("mine")
    said = trained(home, tmp_path / "run", "steps=1", status=2)
    assert "no run is there, and a run writes tokens, which exists already" in said
    assert "attention:" not in said
    assert (tmp_path / "run/tokens").read_text() == "mine"
    trained(home, tmp_path / "other", "steps=1", "record.every=0")
    assert not (tmp_path / "other/tokens").exists()


def test_how_often_is_recorded_may_change_when_a_run_is_resumed_and_what_a_kill_left_is_removed(
    home: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trained(home, run, "steps=3", "checkpoint.every=2")
    newest = run / "checkpoints/step_000003"
    shutil.rmtree(newest)  # as if step 3 had been recorded, and not saved
    (run / "tokens/.step_000009.parquet.tmp").write_bytes(b"PAR1")
    said = outdo_(home, "resume", run, "steps=6", "record.every=5")
    assert "record.every: 1 in the saved run, 5 now" in said
    assert sorted(path.name for path in (run / "tokens").iterdir()) == [f"step_00000{n}.parquet" for n in (1, 2, 5)]
    assert [line["step"] for line in metrics(run) if "moved_as_intended" in line] == [1, 2, 5]
