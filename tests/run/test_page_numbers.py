"""What the page says of a token is what the checkpoints before and after the step say, read by plain transformers."""

import base64
import gzip
import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from encoded_pages import unpack
from run_cases import outdo_
from transformers import AutoModelForCausalLM

from outdo.extras.record.parquet import read
from outdo.testing import tiny_model

STEP, TOKENS, BETA, TEMPERATURE = 3, 200, 0.1, 0.8
METHODS = {
    "grpo": [f'train.objective={{name = "grpo", beta = {BETA}}}'],
    "gspo": ["train.objective=gspo"],
    "ppo": ["train.objective=ppo", 'train.critic={name = "head", lr = 1e-2}'],
    "target": ["train.objective=target_essay"],
}
HOW = [
    *("steps=4", "record.after=all", "eval.every=0", "checkpoint.keep=9", f"sampling.temperature={TEMPERATURE}"),
    *("sampling.max_tokens=12", "train.prompts=3", "train.group_size=8", "optim.lr=3e-3"),
]


class Seen:
    """One step of a run: as its page has it, as its record has it, and as the checkpoints' models see it."""

    def __init__(self, home: Path, run: Path) -> None:
        data = re.search(r'id="outdo-data">(.*?)</script>', (run / "report.html").read_text(), re.DOTALL)
        assert data
        (chosen,) = (each for each in json.loads(data[1])["runs"][0]["chosen"] if each["step"] == STEP)
        header, self.page = unpack(gzip.decompress(base64.b64decode(chosen["blob"])))
        self.rows = read(run, STEP).to_pylist()
        assert [row["length"] for row in header["rows"]] == [len(row["token_ids"]) for row in self.rows]
        self.trained = self.page["trained"].astype(bool)
        checkpoints = run / "checkpoints"
        self.old, self.entropy = self.asked(checkpoints / f"step_{STEP - 1:06d}")
        self.new, _ = self.asked(checkpoints / f"step_{STEP:06d}")
        self.ref, _ = self.asked(home / "model")

    def asked(self, model: Path) -> tuple[np.ndarray, np.ndarray]:
        """log-probability and entropy of every token of the step, by the model folder as transformers loads it."""
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
        logprobs, entropies = [], []
        for row in self.rows:
            start, ids = len(row["prompt_token_ids"]), [*row["prompt_token_ids"], *row["token_ids"]]
            with torch.no_grad():
                logits = policy(torch.tensor([ids])).logits[0, start - 1 : -1] / TEMPERATURE  # [t, V]
            every = logits.log_softmax(-1)
            logprobs.append(every.gather(1, torch.tensor(row["token_ids"])[:, None]).squeeze(1))
            entropies.append(-(every.exp() * every).sum(-1))
        return torch.cat(logprobs).numpy(), torch.cat(entropies).numpy()

    def by_row(self, name: str) -> np.ndarray:
        """A value of each rollout, repeated for each of its tokens."""
        return np.concatenate([np.full(len(row["token_ids"]), row[name], np.float64) for row in self.rows])

    def lengths(self) -> np.ndarray:
        return np.concatenate([np.full(len(row["token_ids"]), len(row["token_ids"])) for row in self.rows])


@pytest.fixture(
    scope="module",
    params=["grpo", "target", *(pytest.param(name, marks=pytest.mark.release) for name in ("gspo", "ppo"))],
)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, home: Path) -> tuple[str, Seen]:
    run = tmp_path_factory.mktemp("numbers") / request.param
    outdo_(home, "train", "recipe.toml", f"run={run}", *HOW, *METHODS[request.param])
    outdo_(home, "inspect", run, "--step", str(STEP))
    return request.param, Seen(home, run)


def close(found: np.ndarray, wanted: np.ndarray, where: np.ndarray, *, noise: float = 2e-5) -> None:
    """To the page's four digits, and to the noise of a float32 forward pass, at `TOKENS` tokens or more."""
    assert where.sum() >= TOKENS
    np.testing.assert_allclose(found[where], wanted[where], rtol=1e-4, atol=noise)


def test_log_probabilities_before_and_after_are_the_checkpoints_own(seen):
    _, step = seen
    close(step.page["old"], step.old, step.trained)
    close(step.page["new"], step.new, step.trained)
    close(step.page["rollout"], step.old, step.trained)
    close(step.page["entropy"], step.entropy, step.trained, noise=1e-4)
    assert np.abs(step.new - step.old)[step.trained].max() > 0.01, "nothing moved, so that nothing was tested"


def test_the_ratio_is_1_where_a_step_is_one_update(seen):
    _, step = seen
    close(step.page["ratio"], np.ones_like(step.old), step.trained)


def test_pushes_and_bounds_are_those_of_the_equation(seen):
    method, step = seen
    push, pull, bound = {"grpo": grpo, "gspo": gspo, "ppo": ppo, "target": target}[method](step)
    assert np.abs(push).max() > 0
    scale = np.abs(push).max()
    close(step.page["policy_push"] / scale, push / scale, step.trained)
    close(step.page["weight"] / scale, push / scale, step.trained)
    close(step.page["kl_pull"] / scale, pull / scale, step.trained)
    known = step.trained & ~np.isnan(bound)
    np.testing.assert_allclose(step.page["bound"][known], bound[known], rtol=1e-4, atol=2e-5)
    assert np.isnan(step.page["bound"][step.trained & np.isnan(bound)]).all()
    assert known.sum() > 50


def clip_bound(step: Seen, advantages: np.ndarray) -> np.ndarray:
    """Where PPO's clip ends: at 1 ± 0.2; nowhere for a token that is not pushed."""
    far = np.log(np.where(advantages > 0, 1.2, 0.8))
    return np.where(advantages == 0, np.nan, step.old + far)


def grpo(step: Seen) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """DeepSeekMath, equation 20: Â + β (π_ref / πθ - 1), by 1/G (all of the step's answers) and 1/|o|."""
    advantages = step.by_row("advantage")
    share = 1 / len(step.rows) / step.lengths()
    return share * advantages, share * BETA * np.expm1(step.ref - step.old), clip_bound(step, advantages)


def gspo(step: Seen) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ratio of an answer is the geometric mean of its tokens', and clipped at 1 - 3e-4 and 1 + 4e-4."""
    advantages = step.by_row("advantage")
    far = np.log(np.where(advantages > 0, 1 + 4e-4, 1 - 3e-4))
    bound = np.where(advantages == 0, np.nan, step.old + far)
    return advantages / len(step.rows) / step.lengths(), np.zeros_like(step.old), bound


def ppo(step: Seen) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every token the same, with the advantage that GAE (γ = 1, λ = 0.95) gives it, made standard over the batch."""
    plain = []
    for row in step.rows:
        following, advantage, found = 0.0, 0.0, []
        for t, value in reversed([*enumerate(row["values"])]):
            reward = row["reward"] if t == len(row["values"]) - 1 else 0.0
            advantage = reward + following - value + 0.95 * advantage
            following = value
            found.append(advantage)
        plain += found[::-1]
    standard = (np.array(plain) - np.mean(plain)) / np.std(plain, ddof=1)
    advantages = step.page["advantages"].astype(np.float64)
    np.testing.assert_allclose(advantages, standard, rtol=1e-4, atol=1e-4)
    return standard / step.trained.sum(), np.zeros_like(step.old), clip_bound(step, standard)


def target(step: Seen) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cross-entropy to {tokens sampled in a context, rest}, its gradient by hand: τ - τ_R p / (1 - Σ p)."""
    contexts: dict[tuple, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    place = 0
    for row in step.rows:
        for t, token in enumerate(row["token_ids"]):
            contexts[row["group"], tuple(row["token_ids"][:t])][token].append(place)
            place += 1
    aim, push = np.concatenate([row["target"] for row in step.rows]), np.zeros_like(step.old)
    for tokens in contexts.values():
        first = [places[0] for places in tokens.values()]
        sampled, wanted = np.exp(step.old[first]), np.exp(aim[first])
        pull = wanted - (1 - wanted.sum()) * sampled / (1 - sampled.sum())
        for places, value in zip(tokens.values(), pull, strict=True):
            push[places] = value / len(places)
    return push, np.zeros_like(step.old), aim


def test_an_answers_own_model_is_told_from_another(tmp_path, home, seen):
    """The comparison above would notice: another model's log-probabilities are far from the page's."""
    _, step = seen
    tiny_model(tmp_path / "other", seed=9)
    other, _ = step.asked(tmp_path / "other")
    assert np.abs(other - step.page["old"])[step.trained].mean() > 0.1
