"""A run whose reward is another model, from the command line: killed and resumed, nothing is paid for twice."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_cases import assert_same, killed_and_resumed
from run_cases import metrics, outdo_, steps_done, write_home
from stand_in_judge import Answer, StandInJudge, shown, stand_in_judge


def grade(request: dict[str, object]) -> str:
    return f"Score: {sum(map(str.isalnum, shown(request, 'answer')))}"


@pytest.fixture
def judge() -> Iterator[StandInJudge]:
    with stand_in_judge(grade) as server:
        yield server


def settings_of(judge: StandInJudge, options: str = "price = {input = 1.0, output = 2.0}") -> tuple[str, ...]:
    reward = f'{{name = "judge", url = "{judge.url}", model = "m", rubric = "Letters?", scale = 100, {options}}}'
    return (f"rewards={reward}", "steps=5", "eval.every=5", "eval.samples=0")


@pytest.mark.release
def test_a_killed_run_asks_nothing_twice(tmp_path: Path, judge: StandInJudge):
    home = write_home(tmp_path)
    outdo_(home, "train", "recipe.toml", "run=./whole", *settings_of(judge))
    assert all(line["judge/requests"] > 0 for line in metrics(home / "whole"))
    judge.requests.clear()
    killed_and_resumed(home, home / "killed", 2, *settings_of(judge))
    assert_same(home / "killed", home / "whole")
    sent = Counter(json.dumps(each, sort_keys=True) for each in judge.requests)
    kept = (home / "killed" / "judge.jsonl").read_text().splitlines()
    assert len(kept) == len(set(kept)) == len((home / "whole" / "judge.jsonl").read_text().splitlines())
    again = sum(count - 1 for count in sent.values())
    # Before a run, which has no folder yet, the judge scores three answers; two kills may lose what was under way.
    assert again <= 3 + 2 * 16


def prefer(request: dict[str, object]) -> str:
    """Prefers more letters; all answers of a group are graded by their letters."""
    text = str(request["messages"])
    if "Compare" not in text:
        count = text.count("</answer ")
        return "Scores: " + ", ".join(
            str(sum(map(str.isalnum, shown(request, f"answer {n + 1}")))) for n in range(count)
        )
    first, second = (sum(map(str.isalnum, shown(request, f"answer {place}"))) for place in "AB")
    return f"Better: {'A' if first > second else 'B' if second > first else 'tie'}"


@pytest.mark.long
@pytest.mark.parametrize("compare", ["pairs", "group"])
def test_a_judge_that_goes_away_ends_the_run_which_then_pays_nothing_twice(
    compare: str, tmp_path: Path, judge: StandInJudge
):
    home, key = write_home(tmp_path), "key-of-the-judge"
    (home / "key").write_text(key)
    options = f'compare = "{compare}", api_key = {{file = "key"}}, limits = {{retries = 0, at_once = 4}}'
    run, paid = home / "run", list[str]()

    def reply(request: dict[str, object]) -> Answer:
        if steps_done(run) >= 2 and not came_back:
            return (503, f"no place for {key}")
        paid.append(json.dumps(request, sort_keys=True))
        return prefer(request)

    came_back, judge.reply = False, reply
    said = outdo_(home, "train", "recipe.toml", "run=./run", *settings_of(judge, options), status=1)
    assert "unavailable" in said
    assert "HTTP 503: no place for ***" in said
    assert steps_done(run) == 2
    came_back = True
    outdo_(home, "resume", "run")
    assert steps_done(run) == 5
    assert not any(line.get("reward_status/unavailable") for line in metrics(run))
    assert len(paid) == len(set(paid))
    assert set(judge.keys) == {f"Bearer {key}"}
    assert judge.most_at_once <= 4
    assert not [path for path in run.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]


def test_a_check_asks_three_times_and_a_run_has_the_scores_of_the_judge(tmp_path: Path, judge: StandInJudge):
    home = write_home(tmp_path)
    outdo_(home, "check", "recipe.toml", *settings_of(judge))
    assert len(judge.requests) == 3
    outdo_(home, "train", "recipe.toml", "run=./run", *settings_of(judge), "steps=1", "eval.every=0")
    (line,) = metrics(home / "run")
    assert line["judge/requests"] > 0
    assert line["reward"] > 0


def test_a_judge_that_refuses_ends_the_command_before_a_model_is_loaded(tmp_path: Path, judge: StandInJudge):
    judge.reply = lambda _: (401, "no such key")
    home = write_home(tmp_path)
    said = outdo_(home, "train", "recipe.toml", *settings_of(judge), status=2)
    assert "HTTP 401: no such key" in said
    assert not (home / "runs").exists()
