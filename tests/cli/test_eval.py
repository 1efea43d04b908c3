"""`outdo eval`: numbers that were worked out by hand, one model or two, a file's questions or a run's."""

import itertools
import json
import math
import re
import shutil
from dataclasses import replace
from fractions import Fraction

import pytest
from command_cases import SMALL, chain_model
from hypothesis import given
from hypothesis import strategies as st

from outdo.run.evaluation.evaluation import Evaluation, compare_paired, pass_at_k
from outdo.run.evaluation.intervals import interval
from outdo.types import FinishReason, Group, Prompt, Rollout


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A model that answers 121212..."""
    return chain_model(tmp_path_factory.mktemp("models") / "endless", "12", after="=", ends=False)


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    """Ten questions, the answer to eight of which is 7."""
    path = tmp_path_factory.mktemp("data") / "ten.jsonl"
    path.write_text(
        "".join(json.dumps({"question": f"{n}=", "answer": "7" if n < 8 else "1"}) + "\n" for n in range(10))
    )
    return path


def group(*answers, reference="7"):
    rollouts = [
        Rollout(
            token_ids=(1,) * len(text),
            loss_mask=(True,) * len(text),
            logprobs=(0.0,) * len(text),
            text=text,
            reward=float(text.endswith(reference)),
            right=text.endswith(reference),
            finish_reason=FinishReason.stop,
            policy_version=0,
        )
        for text in answers
    ]
    return Group(prompt=Prompt(id="0", text="?", token_ids=(1,)), rollouts=tuple(rollouts))


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_all_draws_of_k_that_hold_a_right_answer(case):
    n, right, k = case
    draws = list(itertools.combinations([True] * right + [False] * (n - right), k))
    assert pass_at_k(n, right, k) == pytest.approx(float(Fraction(sum(map(any, draws)), len(draws))), abs=1e-12)


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    [(8, 10, 0.4901625, 0.9433178), (0, 10, 0.0, 0.2775328), (10, 10, 0.7224672, 1.0), (1, 2, 0.0945312, 0.9054688)],
)
def test_with_one_answer_each_the_interval_is_wilsons(right, of, low, high):
    """Worked out by (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n) with z = 1.959964."""
    assert interval([1.0] * right + [0.0] * (of - right)) == pytest.approx((low, high), abs=1e-6)


def test_several_answers_to_few_questions_are_not_as_sure_as_many_questions():
    clustered = interval([1.0, 1.0, 0.0, 0.0], answers=16)  # four answers each, that agree
    agreeing = interval([0.5, 0.5, 0.25, 0.75], answers=16)
    many = interval([1.0, 0.0] * 8)
    assert clustered[1] - clustered[0] > many[1] - many[0]
    assert agreeing[1] - agreeing[0] < clustered[1] - clustered[0]


def test_the_summary_of_a_small_evaluation_by_hand_has_every_power_of_two_and_all_answers():
    groups = [group("7", "9", "7"), group("9", "9", "7"), group("9", "9", "9")]
    told = Evaluation(groups=groups, k=3, majority=[each.rollouts[0] for each in groups]).summary()
    assert told["pass@1"] == pytest.approx(3 / 9)
    assert told["pass@3"] == pytest.approx(2 / 3)
    assert told["maj@3"] == pytest.approx(1 / 3)
    assert (told["n"], told["k"], told["mean_length"], told["truncated"], told["unscored"]) == (3, 3, 1.0, 0.0, 0)
    six = Evaluation(groups=[group("7", "9", "7", "9", "9", "9")], k=6).summary()
    assert {name: value for name, value in six.items() if name.startswith("pass@")} == pytest.approx(
        {"pass@1": 2 / 6, "pass@2": 1 - 6 / 15, "pass@4": 1 - 1 / 15, "pass@6": 1.0}
    )


def test_the_lengths_of_an_evaluation_are_those_that_the_policy_sampled():
    episode = replace(group("777").rollouts[0], loss_mask=(True, False, True))
    evaluation = Evaluation(groups=[replace(group("7"), rollouts=(episode,))], k=1)
    assert evaluation.summary()["mean_length"] == 2
    assert [answer["tokens"] for answer in evaluation.completions("greedy")] == [2]


def test_a_paired_comparison_by_hand():
    first = Evaluation(groups=[group(each) for each in "7997"], k=1)
    second = Evaluation(groups=[group(each) for each in "7779"], k=1)
    found = compare_paired(first, second)
    assert (found.by, found.better, found.worse, found.difference) == ("right", 2, 1, 0.25)
    spread = 3.182446 * math.sqrt((3 + 1) / 6 - (1 / 6) ** 2) / math.sqrt(6)  # differences 0, 1, 1, -1 and two more
    assert found.ci95 == pytest.approx((max(-1, 1 / 6 - spread), min(1, 1 / 6 + spread)))
    assert found.p == 1.0  # 2 of 3 or more extreme, twice: 8/8
    assert compare_paired(first, first).p == 1.0
    failed = replace(first.groups[0].rollouts[0], status="failed", right=None)
    unscored = Evaluation(groups=[replace(first.groups[0], rollouts=(failed,))], k=1)
    assert compare_paired(unscored, unscored) is None


def test_eval_counts_what_is_right(outdo, seven, ten):
    done = outdo("eval", seven, "--data", ten, "--json")
    told = json.loads(done.out)
    assert told.pop("ci95") == pytest.approx([0.4901625, 0.9433178], abs=1e-6)
    assert told.pop("reward_ci95") == pytest.approx([0.4901625, 0.9433178], abs=1e-6)  # rewards of 0 and 1 are shares
    right = dict.fromkeys(("pass@1", "maj@1", "reward"), 0.8)
    assert told == pytest.approx({**right, "mean_length": 2.0, "truncated": 0.0, "unscored": 0, "n": 10, "k": 1})


def test_two_models_are_compared(outdo, seven, endless, ten):
    asked = ["eval", seven, "--against", endless, "--data", ten, "--k", 2, "--max-tokens", 6]
    told = json.loads(outdo(*asked, "--json").out)
    assert list(told) == [str(seven), str(endless), "comparison"]
    assert [told[str(each)]["pass@2"] for each in (seven, endless)] == pytest.approx([0.8, 0.0])
    assert [told[str(each)]["truncated"] for each in (seven, endless)] == [0.0, 1.0]
    table = outdo(*asked).out
    row = next(line for line in table.splitlines() if "pass@1" in line)
    assert ("80.0%" in row, "0.0%" in row) == (True, True)
    labels = ("pass@2: one of 2 right", "maj@2: majority of 2 right", "95 % interval", "answers cut off", "questions")
    assert [label for label in labels if label not in table] == []
    assert "difference (right): -80.0%" in table
    assert "McNemar's exact test" in table


def test_several_data_sets_are_in_one_table_and_each_has_its_comparison(outdo, seven, endless, ten, tmp_path):
    half = tmp_path / "half.jsonl"
    half.write_text("".join(ten.read_text().splitlines(keepends=True)[:5]))
    asked = ["eval", seven, "--data", ten, "--data", half, "--max-tokens", 6]
    told = json.loads(outdo(*asked, "--json").out)
    assert {name: (each["n"], each["pass@1"]) for name, each in told.items()} == {
        str(ten): (10, 0.8),
        str(half): (5, 1.0),
    }
    table = outdo(*asked, "--against", endless).out
    assert table.count("difference (right)") == 2
    assert f"{half}: difference (right)" in table
    refused = outdo(*asked, "--answers", tmp_path / "answers.jsonl")
    assert "--answers writes the answers to one data set; give --data once" in refused.error


def test_a_run_is_evaluated_on_its_held_out_questions_with_its_own_reward(outdo, run):
    told = json.loads(outdo("eval", run, "--json").out)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert told["n"] == 3  # eval.rows of the run's recipe
    assert told["pass@1"] == summary["accuracy_after"]
    assert told["ci95"] == [summary["after"]["greedy_low"], summary["after"]["greedy_high"]]


def test_a_run_is_evaluated_without_the_held_out_questions_that_it_leaves_out(outdo, model, sums, tmp_path):
    held_out, run = tmp_path / "held_out.jsonl", tmp_path / "run"
    rows = [{"question": "1+1=", "answer": "2"}, {"question": "1+" * 2000 + "1=", "answer": "2001"}]
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = (f"model={model}", f"data.path={sums}", f"data.eval_path={held_out}", *SMALL, f"run={run}", "steps=1")
    assert "left out: 1 of 2 held-out questions" in outdo("train", *settings).out
    assert json.loads(outdo("eval", run, "--json").out)["n"] == 1


DENSE = """
def style(completion):
    return 0.5 + len(completion) / 4

def accuracy(completion, answer):
    return 1.0 if completion == answer else 0.0
"""


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "dense.py"
    path.write_text(DENSE)
    return path


def test_several_rewards_are_summed_and_the_matcher_decides_what_is_right(outdo, seven, ten, dense):
    asked = ["eval", seven, "--data", ten, "--rewards", "exact", "--rewards", f"{dense}:style"]
    told = json.loads(outdo(*asked, "--json").out)
    assert told["reward"] == pytest.approx(0.8 + 0.75)  # every answer has a reward near 1 or above it
    assert (told["rewards/exact/mean"], told["rewards/style/mean"]) == pytest.approx((0.8, 0.75))
    assert told["pass@1"] == told["maj@1"] == pytest.approx(0.8)
    assert (
        "an answer is right if exact accepts it (the only reward that compares it with the reference)"
        in outdo(*asked).out
    )


def test_a_reward_has_options_on_the_command_line_as_in_a_recipe(outdo, seven, ten, tmp_path):
    (tmp_path / "mine.py").write_text("def score(completion, length): return float(length)")
    asked = ["eval", seven, "--data", ten, "--json", "--rewards"]
    table = f'{{name = "{tmp_path}/mine.py:score", length = 4}}'
    assert json.loads(outdo(*asked, table).out)["reward"] == 4
    misspelt = outdo(*asked, table.replace("length", "lenght"))
    assert (misspelt.status, 'score".lenght: unknown option; did you mean length?' in misspelt.error) == (2, True)


def test_without_a_verdict_eval_shows_mean_rewards_and_calls_nothing_right(outdo, seven, ten, dense, tmp_path):
    asked = ["eval", seven, "--data", ten, "--rewards", f"{dense}:accuracy", "--rewards", f"{dense}:style"]
    told = json.loads(outdo(*asked, "--json").out)
    assert told["rewards/accuracy/mean"] == pytest.approx(0.8)
    assert not {"pass@1", "maj@1", "ci95"} & told.keys()
    assert "right is not defined: mean rewards are shown instead" in outdo(*asked).out
    named = json.loads(outdo(*asked, "--right", "accuracy", "--json").out)
    assert named["pass@1"] == pytest.approx(0.8)
    assert named["reward"] == told["reward"]
    misspelt = outdo(*asked, "--right", "acuracy")
    assert (misspelt.status, "did you mean accuracy?" in misspelt.error) == (2, True)
    rates = outdo(*asked, "--rates", tmp_path / "r.jsonl")
    assert (rates.status, "--right NAME names the reward that decides: accuracy or style" in rates.error) == (2, True)
    single = outdo("eval", tmp_path, "--data", ten, "--rewards", f"{dense}:accuracy", "--rates", tmp_path / "r.jsonl")
    assert (single.status, "accuracy returns numbers" in single.error) == (2, True)


def test_eval_keeps_every_answer(outdo, seven, ten, tmp_path):
    target = tmp_path / "answers.jsonl"
    done = outdo("eval", seven, "--data", ten, "--k", 2, "--answers", target)
    answers = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert [(each["id"], each["sample"]) for each in answers] == [(str(n), k) for n in range(1, 11) for k in range(2)]
    assert {each["right"] for each in answers if each["completion"] == "7" and int(each["id"]) <= 8} == {True}
    assert {each["kind"] for each in answers} == {"sampled"}
    assert f"the answers: {target}" in done.out.replace("\n", "")
    nowhere = outdo("eval", tmp_path / "no_model", "--data", ten, "--answers", tmp_path / "no" / "a.jsonl")
    assert (nowhere.status, "there is no folder" in nowhere.error) == (2, True)


def test_eval_votes_by_the_answers_that_the_reward_reads(outdo, tmp_path):
    model = chain_model(tmp_path / "half", "1/2", after="=")
    data = tmp_path / "half.jsonl"
    data.write_text(json.dumps({"question": "1=", "answer": r"\frac{\sqrt{1}}{2}"}) + "\n")
    told = json.loads(outdo("eval", model, "--data", data, "--rewards", "math", "--k", 4, "--json").out)
    assert (told["maj@4"], told["pass@1"]) == (1.0, 1.0)


def test_eval_names_the_code_of_the_recipe_that_it_runs(outdo, run, tmp_path):
    copy, reward = tmp_path / "run", tmp_path / "stranger.py"
    shutil.copytree(run, copy)
    reward.write_text("def score(completion): return 1.0")
    recipe = (copy / "recipe.toml").read_text(encoding="utf-8")
    (copy / "recipe.toml").write_text(re.sub(r"(?m)^rewards = .*$", f'rewards = "{reward}:score"', recipe))
    done = outdo("eval", copy, "--json")
    assert json.loads(done.out)["reward"] == 1.0
    assert f"runs code that the recipe names: {reward}:score" in done.error.replace("\n", "")
    assert "runs code" not in outdo("eval", copy, "--json", "--rewards", "exact").error


def test_wrong_arguments_of_eval_are_refused(outdo, seven, ten, tmp_path):
    without_data = outdo("eval", seven)
    assert without_data.status == 2
    assert "--data FILE is needed" in without_data.error
    several_greedy = outdo("eval", seven, "--data", ten, "--k", 4, "--temperature", 0)
    assert several_greedy.status == 2
    assert "--k 1" in several_greedy.error
    missing = outdo("eval", seven, "--data", tmp_path / "nothing.jsonl")
    assert missing.status == 2
    assert "nothing.jsonl" in missing.error
