"""In a run, "right" is the verdict of one reward: the sum of the rewards and their weights play no part."""

import json
import os
import re
import signal

import pytest
from run_cases import Command, metrics, outdo_, saved, steps_done, wait_until

from outdo.run.checkpoints.run_state import run_state
from outdo.run.evaluation import held_out_completions

TWO = '''
asked = 0

def accuracy(prompt, completion):
    """Held-out questions are answered rightly from the second evaluation to the third."""
    global asked
    if "+5=" not in prompt:
        return 0.0
    asked += 1
    return float(3 < asked <= 6)

def style(completion):
    """Every answer is worth more than 1."""
    return 1.5 + len(set(completion)) / 100
'''


@pytest.fixture
def two(own_home):
    (own_home / "two.py").write_text(TWO)
    rows = [{"prompt": f"{a}+5=", "answer": str(a + 5)} for a in range(3)]
    (own_home / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return own_home


def test_the_named_reward_decides_and_the_best_checkpoint_follows_it(two):
    keys = ("steps=4", "eval.every=2", "eval.samples=0", "checkpoint.every=4", "checkpoint.keep=1")
    rewards = 'rewards=["two.py:accuracy", "two.py:style"]'
    said = outdo_(two, "train", "recipe.toml", "run=./run", "--verbose", *keys, rewards, "eval.right=accuracy")
    lines = metrics(two / "run")
    assert "an answer is right if accuracy is 1 or more (eval.right)" in said
    assert "right 0%" in said  # although every reward is above 1
    assert [line["right"] for line in lines] == [0.0] * 4
    assert all(line["reward"] > 1 for line in lines)
    assert [line.get("eval/greedy") for line in lines] == [None, 1.0, None, 0.0]
    assert all(line["eval/greedy_rewards/style/mean"] > 1.5 for line in lines if "eval/greedy" in line)
    assert saved(two / "run") == [2, 4]
    outdo_(two, "export", "run", "best", "--best")
    card = (two / "best/README.md").read_text()
    assert "| right, greedy | 0.0% [0.0%, 56.1%] | 100.0% [" in card
    assert re.search(r"\| reward, greedy \| 1\.\d+ \[", card)


def test_without_a_rule_nothing_is_called_right(two):
    rewards = 'rewards=["two.py:accuracy", "two.py:style"]'
    said = outdo_(two, "train", "recipe.toml", "run=./run", "steps=1", "--verbose", rewards)
    assert "eval.right = NAME chooses one of accuracy, style" in said
    assert not re.search(r"right \d|questions right", said)
    outdo_(two, "export", "run", "exported")
    table = (two / "exported/README.md").read_text().partition("```toml")[0]
    assert "| right" not in table
    assert "| reward, greedy |" in table
    refused = outdo_(two, "train", "recipe.toml", "steps=1", rewards, "train.objective=rejection", status=2)
    assert "train.advantage = rejection: needs to know which answers are right" in refused
    misspelt = outdo_(two, "check", "recipe.toml", rewards, "eval.right=acuracy", status=2)
    assert "eval.right: no reward is called 'acuracy'; did you mean accuracy?" in " ".join(misspelt.split())


def test_a_killed_run_has_its_baseline_and_tells_its_state(own_home):
    run = own_home / "run"
    command = Command(own_home, "train", "recipe.toml", "run=./run", "steps=500")
    wait_until(lambda: steps_done(run) >= 2, command)
    assert run_state(run).kind == "running"
    os.kill(command.pid, signal.SIGKILL)
    assert command.wait() == -signal.SIGKILL
    state = run_state(run)
    assert str(state) == f"killed at step {steps_done(run)} of 500"
    answers = held_out_completions.read(run, 0)
    greedy = [answer["reward"] for answer in answers if answer["kind"] == "greedy"]
    before = json.loads((run / "summary.json").read_text())["before"]
    assert before["questions"] == len(greedy)
    assert before["greedy_reward"] == pytest.approx(sum(greedy) / len(greedy))


GATE = '''
from pathlib import Path

def gate(completion):
    """False from a check, or a number: 1 for every other of the answers that pass it."""
    if len(set(completion)) % 2:
        return False
    return 1.0 if len(completion) % 3 == 0 else 0.0


def flaky(prompt, completion):
    """From the second evaluation on it does not apply to held-out questions with a 1 or a 2."""
    right = len(set(completion)) % 2 == 0
    if "+5=" not in prompt:
        return right
    done = Path("evaluated.txt")
    with done.open("a") as file:
        file.write("x")
    return None if len(done.read_text()) > 4 and prompt[0] in "12" else right
'''


@pytest.fixture
def gates(own_home):
    (own_home / "gates.py").write_text(GATE)
    return own_home


def test_rejection_trains_on_a_function_that_returns_false_or_a_number(gates):
    how = ("rewards=gates.py:gate", "train.objective=rejection", "steps=3", "eval.every=0", "data.eval_path=")
    outdo_(gates, "train", "recipe.toml", "run=./run", *how)
    lines = metrics(gates / "run")
    assert [line["right"] for line in lines] == pytest.approx([line["reward"] for line in lines])
    assert not any("num_without_verdict" in line for line in lines)


def test_a_grader_that_stops_to_apply_does_not_lower_the_held_out_numbers(gates):
    how = ("rewards=gates.py:flaky", "optim.lr=1e-9", "steps=3", "eval.every=1", "eval.samples=0", "eval.rows=4")
    said = outdo_(gates, "train", "recipe.toml", "run=./run", *how, "eval.best={name='greedy',patience=2}")
    *_, last = metrics(gates / "run")
    answers = held_out_completions.read(gates / "run", 3)
    judged = [each["right"] for each in answers if each["right"] is not None]
    assert (len(judged), len(answers)) == (2, 4)
    assert last["eval/greedy"] == sum(judged) / 2
    assert (last["eval/greedy_without_verdict"], last["eval/greedy_answers"]) == (2, 4)
    assert "; 2 of 4 without a verdict)" in said
    assert "greedy_without_verdict" not in json.loads((gates / "run/summary.json").read_text())["before"]
