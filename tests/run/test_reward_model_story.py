"""From preferences to a reward model to a better policy, by commands alone; and a reward model that stands still."""

from random import Random

import pytest
from run_cases import metrics, outdo_, write_home, write_rows

HIDDEN = '''
def rule(completion):
    """The share of digits."""
    return sum(each.isdigit() for each in completion) / max(1, len(completion))
'''
OTHERS = "abcdefghijklmnopqrstuvwxyz.,:; "


def pairs(count):
    """Two answers to each question, of which the one with more digits is preferred; nothing says why."""
    random = Random(0)

    def answer(digits):
        text = [random.choice("0123456789" if place < digits else OTHERS) for place in range(6)]
        return "".join(random.sample(text, 6))

    asked = [f"{number % 10}+{number % 7}=" for number in range(count)]
    more = [random.randint(1, 6) for _ in asked]
    return [
        {"prompt": prompt, "chosen": answer(digits), "rejected": answer(random.randrange(digits))}
        for prompt, digits in zip(asked, more, strict=True)
    ]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A home with a reward model that was trained by the command; what the command said is in `judge.log`."""
    home = write_home(tmp_path_factory.mktemp("story"))
    (home / "hidden.py").write_text(HIDDEN)
    write_rows(home / "pairs.jsonl", pairs(200))
    asked = ("--steps", "40", "--batch", "16", "--lr", "3e-3", "--holdout", "0.2", "--device", "cpu")
    said = outdo_(home, "reward-model", "model", "--data", "pairs.jsonl", "--out", "judge", *asked)
    (home / "judge.log").write_text(said)
    return home


def by_judge(home, run, refresh):
    """Forty steps in which the policy is rewarded by the model alone; their metrics."""
    reward = f'rewards={{name = "reward_model", path = "judge", labels = "hidden.py:rule", replay = 0.1, {refresh}}}'
    size = ("steps=40", "train.prompts=8", "train.group_size=8", "sampling.max_tokens=6", "optim.lr=3e-3")
    outdo_(home, "train", "recipe.toml", f"run=./{run}", reward, *size, "eval.every=0", "checkpoint.every=40")
    return metrics(home / run)


def ends(lines, name):
    """The mean of a metric over the first four and the last four steps."""
    first, last = (sum(line[name] for line in part) / 4 for part in (lines[:4], lines[-4:]))
    return first, last


@pytest.mark.release
def test_preferences_train_a_reward_model_and_it_trains_a_policy_that_never_saw_the_rule(story):
    held_out = (story / "judge.log").read_text().partition("held-out: pairwise accuracy ")[2]
    assert float(held_out.partition("%")[0]) > 65
    lines = by_judge(story, "refreshed", "every = 4, steps = 4, lr = 1e-3")
    assert all(line["reward"] == line["rewards/reward_model/mean"] for line in lines)
    assert {name for name in lines[0] if name.startswith("rewards/")} == {"rewards/reward_model/mean"}
    before, after = ends(lines, "reward_model/label")
    assert before < 0.1
    assert after > 0.6
    fixed = by_judge(story, "fixed", "every = 1000")  # the policy learns what this one mistakes for good
    assert ends(fixed, "reward")[1] > ends(fixed, "reward")[0] + 0.5
    assert ends(fixed, "reward_model/label")[1] < after / 2
