"""A name, a file, a function or a list becomes a reward, or all mistakes in it are reported at once."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outdo.config.file import load
from outdo.rewards import (
    BUILTIN,
    FailureCount,
    InProcessReward,
    RewardInput,
    RewardOutput,
    Status,
    WeightedSum,
    load_reward,
)
from outdo.rewards.types import output_without_value
from outdo.utils.errors import RewardError, UserError
from outdo.utils.reward_names import weights_by_name

Sample = Callable[..., RewardInput]
DOCUMENTATION = (Path(__file__).parents[2] / "docs/rewards.md").read_text()
EXAMPLES = re.findall(r"```python\n# (\w+\.py)\n(.*?def (\w+).*?)```", DOCUMENTATION, re.S)


# The others have tests of their own.
@pytest.mark.parametrize("name", sorted({*BUILTIN} - {"reasoning_gym", "judge", "reward_model"}))
def test_every_built_in_name_scores(name: str, sample: Sample):
    options = {"overlong": {"max_tokens": 1, "cache": 1}, "code": {"unsafe_local": True}}.get(name, {})
    reward = load_reward({"name": name, **options})
    value = {"overlong": -1.0, "environment": 0.0}.get(name, 1.0)  # an environment adds the rewards itself
    answer = {"multiple_choice": "B", "code": "assert f() == 1"}.get(name, "1")
    completion = "def f(): return 1" if name == "code" else f"<think></think><answer>{answer}</answer>"
    assert reward([sample(completion, answer)])[0].parts == {name: value}
    reward.close()


@pytest.mark.parametrize(("file", "source", "function"), EXAMPLES)
def test_the_examples_of_the_documentation_run(tmp_path: Path, sample: Sample, file: str, source: str, function: str):
    (tmp_path / file).write_text(source)
    reward = load_reward(f"{tmp_path / file}:{function}")
    assert [output.value for output in reward([sample("it is 1"), sample("it is 2")])] == [1.0, 0.0]
    reward.close()


def test_a_module_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: Sample):
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "own_rewards.py").write_text("def score(completion): return 1.0")
    monkeypatch.chdir(tmp_path)
    reward = load_reward("own_package.own_rewards:score")
    assert reward([sample("a")])[0].parts == {"score": 1.0}
    reward.close()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("exakt", 'rewards: nothing is called "exakt"; did you mean exact?'),
        ("my_rewards.py:score", "did you mean my_reward.py?"),
        ("my_reward.py:scor", 'has no "scor"; did you mean score?'),
        ("no_such_package.rewards:score", "No module named 'no_such_package'"),
        ([("exact", float("nan"))], "the weight of the reward exact must be a finite number, not nan"),
        ([], "needs at least one reward"),
        (
            {"name": "my_reward.py:score", "lenght": 3},
            'rewards."my_reward.py:score".lenght: unknown option; did you mean length?',
        ),
        ({"name": "my_reward.py:score", "x": 3}, 'score".x: unknown option; my_reward.py:score takes length'),
        ({"name": "exact", "answer": 3}, "rewards.exact.answer: outdo sets it itself: it belongs to the completion"),
        ({"name": "overlong", "cache": 3}, "rewards.overlong.max_tokens: required by overlong"),
        ({"name": "my_reward.py:score", "length": lambda: 3}, "length: expected a number such as 1, found <function"),
        ({"name": "my_reward.py:free", "length": lambda: 3}, "its options cannot be sent to its worker"),
    ],
)
def test_an_error_offers_the_nearest_right_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: Any, message: str
):
    (tmp_path / "my_reward.py").write_text(
        "def score(completion, length=1): return 1.0\ndef free(completion, length): ..."
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(message)):
        load_reward(spec)


def test_all_mistakes_of_a_list_are_reported():
    with pytest.raises(UserError) as caught:
        load_reward(["exakt", ("format", 0.5), {"name": "nowhere.py:f"}])
    assert len(caught.value.problems) == 2


def test_a_reward_whose_code_was_deleted_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(BUILTIN, "judge", "outdo.extras.deleted:judge")
    sentence = "needs outdo.extras.deleted, which this installation of outdo does not have"
    with pytest.raises(UserError) as caught:
        load_reward({"name": "judge", "url": 3})
    assert list(caught.value.problems) == [f"rewards.judge: {sentence}"]
    with pytest.raises(UserError) as caught:
        load(None, ["model=m", "data.path=d", 'rewards={name = "judge", url = 3}'])
    assert list(caught.value.problems) == [f'command line: rewards = "judge": {sentence}']


# ---- options


TRL = "def score(completions, length, **columns): return [float(length == 3)] * len(completions)"
VERL = "def score(solution_str, length=0): return float(length == 3)"
PLAIN = "def score(completion, *, length): return float(length == 3)"


@pytest.mark.parametrize("source", [TRL, VERL, PLAIN])
@pytest.mark.parametrize("where", ["in a worker", "in this process"])
def test_an_option_works_with_every_signature_and_wins_over_a_column(
    tmp_path: Path, sample: Sample, source: str, where: str
):
    (tmp_path / "my_reward.py").write_text(source)
    defined: dict[str, Any] = {}
    exec(source, defined)
    spec = f"{tmp_path / 'my_reward.py'}:score" if where == "in a worker" else defined["score"]
    reward = load_reward([{"name": spec, "weight": 0.5, "length": 3}])
    assert [output.value for output in reward([sample("a", length=9), sample("b")])] == [0.5, 0.5]
    reward.close()


def test_an_option_may_be_omitted_if_a_default_or_a_column_fills_it(sample: Sample):
    def score(completion: str, length: int, factor: float = 2.0) -> float:
        return factor * length

    assert load_reward({"name": score})([sample("a", length=3)])[0].value == 6.0
    assert load_reward({"name": score, "factor": 1.0})([sample("a", length=3)])[0].value == 3.0


def test_a_secret_of_the_wrong_type_is_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("JUDGE_KEY", "very-secret-key")
    (tmp_path / "mine.py").write_text("def score(completion, length=3): ...\nown = (lambda: score)()\n")
    key = {"env": "JUDGE_KEY"}
    for name in (lambda completion, length=3: 1.0, f"{tmp_path}/mine.py:score"):
        with pytest.raises(UserError, match="length: expected a number such as 3, found ''"):
            load_reward({"name": name, "length": key})
    with pytest.raises(UserError, match=r"own\.lenght: unknown option") as caught:  # found by the worker, which has it
        load_reward({"name": f"{tmp_path}/mine.py:own", "lenght": 3, "length": key})
    assert "very-secret-key" not in str(caught.value)


# ---- several rewards


def combined(*weighted: tuple[object, float]) -> RewardOutput:
    parts = [
        (InProcessReward(lambda completion, value=value: value, f"r{i}"), weight)
        for i, (value, weight) in enumerate(weighted)
    ]
    return WeightedSum(parts)([RewardInput(prompt="", completion="", answer=None)])[0]


def test_rewards_are_summed_by_their_weights():
    output = combined((1.0, 1.0), (0.5, -2.0), (True, 0.25))
    assert (output.value, output.status) == (0.25, "ok")
    assert output.parts == {"r0": 1.0, "r1": 0.5, "r2": 1.0}


def test_a_reward_that_does_not_apply_adds_nothing():
    output = combined((0.5, 1.0), (None, 1.0))
    assert (output.value, output.status, output.parts) == (0.5, "ok", {"r0": 0.5, "r1": None})


def test_a_reward_that_is_only_watched_does_not_make_the_sum_applicable():
    watched = combined((None, 1.0), (0.5, 0.0))
    assert watched.status is Status.not_applicable
    assert sorted(map(str, watched.parts.values())) == ["0.5", "None"]
    assert combined((0.5, 0.0)).status is Status.ok  # nothing is trained on: every answer has the reward 0


@pytest.mark.parametrize(("bad", "status"), [("text", "failed"), (float("nan"), "non_finite")])
def test_one_failed_reward_makes_the_sum_failed(bad: object, status: str):
    output = combined((1.0, 1.0), (bad, 0.0))
    assert (output.value, output.status, output.parts) == (0.0, status, {"r0": 1.0, "r1": None})
    assert output.reason.startswith("r1: ")


def test_two_rewards_with_the_same_name_keep_both_parts(sample: Sample):
    output = load_reward(["exact", "exact", {"name": "format", "weight": 0.1}])([sample("1")])[0]
    assert output.parts == {"exact": 1.0, "exact_2": 1.0, "format": 0.0}


def test_two_rewards_with_the_same_name_get_the_names_of_their_files(tmp_path: Path, sample: Sample):
    for name, value in (("length", 1), ("style", 2)):
        (tmp_path / f"{name}.py").write_text(f"def score(completion, factor=1): return {value} * factor")
    files = [f"{tmp_path}/length.py:score", f"{tmp_path}/style.py:score"]
    reward = WeightedSum([(load_reward([each]), 1.0) for each in [*files, "exact"]])  # as a run builds it
    assert reward([sample("a")])[0].parts == {"length.score": 1.0, "style.score": 2.0, "exact": 0.0}
    reward.close()
    reward = load_reward([files[0], {"name": files[0], "factor": 3}])
    assert reward([sample("a")])[0].parts == {"score": 1.0, "score_2": 3.0}
    reward.close()


@pytest.mark.parametrize(
    ("rewards", "names"),
    [
        (["exact", "format", "exact"], ["exact", "format", "exact_2"]),
        (["format", "a.py:format", "math"], ["format", "a.format", "math"]),
        (["a.py:score", "b.py:score", "format"], ["a.score", "b.score", "format"]),
        (["a.py:score", "c/a.py:score", "a.py:score_2"], ["score", "score_2", "score_2_2"]),
    ],
)
def test_the_weights_in_a_recipe_are_found_by_the_names_of_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewards: list[str], names: list[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c").mkdir()
    for file in ("a.py", "b.py", "c/a.py"):
        (tmp_path / file).write_text("def score(completion): return 1.0\nformat = score_2 = score\n")
    entries = [{"name": name, "weight": weight} for weight, name in enumerate(rewards)]
    total = WeightedSum([(load_reward([each]), each["weight"]) for each in entries])  # as a run builds it
    total.close()
    assert list(total.names) == names
    assert weights_by_name(entries) == dict(zip(total.names, total.weights, strict=True))


# ---- too many failures


def test_too_many_failures_stop_the_run_and_show_the_first(sample: Sample):
    outputs = [
        *load_reward(lambda completion: 1.0)([sample("fine")] * 2),
        output_without_value(Status.timed_out, "score had no answer after 10 s", "score"),
        output_without_value(Status.failed, "ValueError", "score"),
    ]
    inputs = [sample("fine"), sample("fine"), sample("9**9\x1b[2J\u202e\n\ud800日本"), sample("other")]
    FailureCount().check(outputs, inputs, 0.5)
    with pytest.raises(RewardError) as caught:
        FailureCount().check(outputs, inputs, 0.49)
    assert str(caught.value).splitlines() == [
        "2 of 4 rewards of this step have no value (1 timed_out, 1 failed); allowed are 49%.",
        "The first: timed_out: score had no answer after 10 s",
        r"Its completion: 9**9\x1b[2J\u202e\n\ud800日本",
    ]
