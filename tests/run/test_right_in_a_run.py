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
    said = outdo_(two, "train", "recipe.toml", "run=./run", *keys, rewards, "eval.right=accuracy")
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
    said = outdo_(two, "train", "recipe.toml", "run=./run", "steps=1", rewards)
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
