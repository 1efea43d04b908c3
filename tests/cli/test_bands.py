"""`outdo compare --band`: are the metrics of runs within the ranges of a file?"""

import json
from pathlib import Path

import pytest

BANDS = """
["eval/greedy"]
60 = [0.5, 0.7]
[reward]
2-3 = [0.25, 0.5]
"""


def write_run(folder: Path, greedy: float, rewards: list[float | None]) -> Path:
    folder.mkdir()
    (folder / "recipe.toml").write_text('model = "m"\n')
    lines = [{"step": step, "reward": reward} for step, reward in enumerate(rewards, 1)]
    lines.append({"step": 60, "reward": 9.0, "eval/greedy": greedy})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_run_within_its_bands_and_runs_outside_of_them(outdo, tmp_path: Path):
    (tmp_path / "band.toml").write_text(BANDS)
    inside = write_run(tmp_path / "inside", 0.7, [0.0, 0.25, 0.75])  # both ends belong to a band
    low = write_run(tmp_path / "low", 0.49, [0.0, 0.5, 0.25])
    with (low / "metrics.jsonl").open("a") as file:  # lines that hold no step, and values that are no numbers
        file.write('{"reward": 1}\n{"step": [1]}\n{"step": 61, "reward": "high"}\n')
    lacking = write_run(tmp_path / "lacking", 0.6, [0.0, None, 0.5])
    done = outdo("compare", inside, "--band", tmp_path / "band.toml")
    assert done.status == 0, done.error
    assert "outside: 0 of 2 values" in done.out
    done = outdo("compare", inside, low, lacking, "--band", tmp_path / "band.toml")
    assert done.status == 1
    for part in ("0.49 outside", "missing", "2-3", "0.25 to 0.5", "outside: 2 of 6 values"):
        assert part in done.out
    done = outdo("compare", inside, low, lacking, "--band", tmp_path / "band.toml", "--json")
    assert done.status == 1
    found = json.loads(done.out)
    assert found["outside"] == 2
    assert [each["values"] for each in found["bands"]] == [[0.7, 0.49, 0.6], [0.5, 0.375, None]]


def test_step_0_is_the_evaluation_before_the_first_step(outdo, tmp_path: Path):
    (tmp_path / "band.toml").write_text('["eval/greedy"]\n0 = [0.1, 0.2]')
    run = write_run(tmp_path / "run", 0.5, [0.5])
    for before, said in (({"greedy": 0.15}, "outside: 0"), ({"greedy": 0.5}, "0.5 outside"), ([0.15], "missing")):
        (run / "summary.json").write_text(json.dumps({"before": before}))
        assert said in outdo("compare", run, "--band", tmp_path / "band.toml").out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected the table of a metric"),
        ("reward = 1", "reward: expected the table of a metric, with entries like 60 = [0.5, 0.7]"),
        ("[reward]\nlast = [0, 1]", "not last = [0, 1]"),
        ("[reward]\n3-2 = [0, 1]", "not 3-2 = [0, 1]"),
        ("[reward]\n3 = [1, 0]", "not 3 = [1, 0]"),
        ("[reward]\n3 = [nan, 0]", "not 3 = [nan, 0]"),
        ("[reward]\n3 = [true, 2]", "not 3 = [True, 2]"),
        ("[reward]\n1 = [0, 1" + "0" * 400 + "]", "not 1 = [0, 1000"),
        ("[reward]\n1-99999999 = [0, 1]", "not 1-99999999 = [0, 1]"),
        ("[reward", "band.toml: "),
    ],
)
def test_a_mistake_in_a_band_is_one_sentence(outdo, tmp_path: Path, text: str, said: str):
    (tmp_path / "band.toml").write_text(text)
    run = write_run(tmp_path / "run", 0.5, [0.5])
    done = outdo("compare", run, "--band", tmp_path / "band.toml")
    assert done.status == 2
    assert said in done.error


def test_all_mistakes_of_a_band_are_said_at_once(outdo, tmp_path: Path):
    (tmp_path / "band.toml").write_text("[reward]\n3 = 1\n[kl]\n4 = [2]")
    run = write_run(tmp_path / "run", 0.5, [0.5])
    done = outdo("compare", run, "--band", tmp_path / "band.toml")
    assert "not 3 = 1" in done.error
    assert "not 4 = [2]" in done.error


def test_settings_that_are_not_known_are_not_called_equal(outdo, tmp_path):
    """Runs of other trainers have no recipe."""
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    (tmp_path / "third" / "recipe.toml").write_text("steps = 2\n")
    done = outdo("compare", *(tmp_path / name for name in ("first", "second", "third")))
    assert done.out.count("its settings are not known, because it has no recipe.toml") == 2
    assert "all settings are equal" not in done.out
    assert "settings that differ" not in done.out
