"""Run folders as a real run leaves them, made up in an instant: recipe, environment, summary, metrics, and every token.

The numbers hold together: the ratio is exp(last - old), a bound lies where the ratio would be clipped, the advantage is
the group's reward less its mean over its spread, rollouts of one prompt share a beginning and part where a good and a
bad answer part, and what is pushed up mostly rises.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pyarrow
from numpy.typing import NDArray

from outdo.extras.record import parquet

CLIP_LOW, CLIP_HIGH = 0.2, 0.2
PASSES = 4
BETA = 0.04

WORDS = (
    *(
        "<|end|>",
        "12",
        " 7",
        " +",
        " =",
        " 19",
        " so",
        " the",
        " answer",
        " is",
        "\n",
        "\t",
        "  ",
        ".",
        ",",
        " 18",
        " two",
    ),
    *(
        " digits",
        " carry",
        " one",
        " tens",
        " ones",
        " add",
        " first",
        " then",
        " we",
        " get",
        "é",
        "日本",
        " naïve",
        "🙂",
    ),
    *(f" word{number}" for number in range(200)),
)
END, TAIL = 0, (11, 10, 18, len(WORDS), len(WORDS) + 1)  # a tab, a line break, " carry", and the two halves of "€"
VOCABULARY: tuple[tuple[str, bytes], ...] = (
    *((word, word.encode()) for word in WORDS),
    ("", "€".encode()[:2]),  # a character torn over two tokens belongs to the one that completes it
    ("€", "€".encode()[2:]),
)
"""Piece and bytes of each token id."""

HOSTILE = (
    "<script>document.title='owned'</script>",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(1)>",
    "<a href='javascript:alert(1)'>look</a>",
    "\x1b[31mred\x1b[0m\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\",
    "\u202eright to left",
    "=cmd|'/c calc'!A1",
    "+1+1",
    "@SUM(A1)",
    "[/b][bold red]markup[/]",
    "nul\x00inside",
    "line\u2028and\u2029paragraph",
    "]]>&lt;&#60;script&#62;",
    "{{constructor.constructor('alert(1)')()}}",
)
"""What a model or a data file may hold, and a page, a table or a terminal must show without obeying."""


def write_small_run(folder: Path, *, seed: int = 0) -> Path:
    """Six steps of four groups of eight rollouts of up to 24 tokens, all recorded."""
    return write_run(folder, steps=6, groups=4, group_size=8, length=24, seed=seed)


def write_wide_run(folder: Path) -> Path:
    """One recorded step of 64 rollouts of 1,024 tokens."""
    return write_run(folder, steps=1, groups=8, group_size=8, length=1024, even=True)


def write_long_run(folder: Path) -> Path:
    """1,000 steps of metrics, three of them recorded."""
    return write_run(folder, steps=1000, groups=4, group_size=8, length=24, eval_every=20, recorded=(1, 500, 1000))


def write_hostile_run(folder: Path, hostile: Sequence[str] = HOSTILE) -> Path:
    """A small run whose prompts, completions, answers, verdicts, names and command hold `hostile`."""
    return write_run(folder, steps=2, groups=4, group_size=8, length=24, hostile=hostile)


def write_watched_run(folder: Path, *, topic: tuple[float, float], weight: float = 0) -> Path:
    """Twenty steps, rewarded by `score`, which rises, and by `topic` with this weight and these first and last means.

    Both are called `score`, in the files `mine.py` and `topic.py`. The last step is recorded.
    """
    write_run(folder, steps=20, groups=4, group_size=8, length=24, eval_every=10, recorded=(20,))
    recipe = (folder / "recipe.toml").read_text()
    rewards = f'rewards = ["mine.py:score", {{name = "topic.py:score", weight = {weight}}}]'
    (folder / "recipe.toml").write_text(recipe.replace('rewards = ["exact"]', rewards))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for step, line in enumerate(lines):
        for name in [name for name in line if name.startswith("rewards/")]:
            del line[name]
        means = {"mine.score": 0.4 + 0.02 * step, "topic.score": topic[0] if step < 10 else topic[1]}
        line |= {f"rewards/{name}/mean": mean for name, mean in means.items()}
        if "eval/greedy" in line:
            line |= {f"eval/greedy_rewards/{name}/mean": mean for name, mean in means.items()}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_run(
    folder: Path,
    *,
    steps: int,
    groups: int,
    group_size: int,
    length: int,
    vocabulary: Sequence[tuple[str, bytes]] = VOCABULARY,
    hostile: Sequence[str] | None = None,
    eval_every: int = 2,
    recorded: Sequence[int] | None = None,
    even: bool = False,
    seed: int = 0,
) -> Path:
    """A finished run of `steps` steps; `recorded` are those with tokens, by default all. Returns `folder`.

    `even`: each completion has `length` tokens; otherwise they end sooner or later.
    """
    start_run(folder, steps=steps, hostile=hostile, seed=seed)
    for step in range(1, steps + 1):
        with_tokens = recorded is None or step in recorded
        shape = (groups, group_size, length) if with_tokens else None
        add_step(
            folder, step, steps=steps, shape=shape, vocabulary=vocabulary, hostile=hostile, eval_every=eval_every,
            even=even, seed=seed,
        )  # fmt: skip
    last = _evaluation(1.0)
    summary = {
        **{"accuracy_before": 0.25, "accuracy_after": last["eval/greedy"], "steps": steps, "seconds": 2.0 * steps},
        **{"tokens_per_second": 1000.0, "run": folder.name},
        "before": {name.removeprefix("eval/"): value for name, value in _evaluation(0.0).items()},
        "after": {name.removeprefix("eval/"): value for name, value in last.items()},
        "best": {"step": steps - steps % eval_every or steps, "greedy": last["eval/greedy"]},
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2))
    return folder


def start_run(folder: Path, *, steps: int, hostile: Sequence[str] | None = None, seed: int = 0) -> Path:
    """What a run has written before its first step."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(
        f'model = "models/small"\nrun = "{folder.name}"\nseed = {seed}\nsteps = {steps}\nrewards = ["exact"]\n'
        '\n[data]\npath = "questions.jsonl"\n\n[sampling]\ntemperature = 1.0\nmax_tokens = 48\n'
        f'\n[train]\nprompts = 4\ngroup_size = 8\npasses = {PASSES}\nobjective = {{name = "grpo", beta = {BETA}}}\n'
        "\n[optim]\nlr = 1e-4\n\n[eval]\nevery = 2\n",
        encoding="utf-8",
    )
    unsafe = [*(text[:100] for text in hostile), "\ud800"] if hostile else []  # half of a surrogate pair
    command = ["outdo", "train", "recipe.toml", *unsafe]
    environment = {
        **{"python": "3.11.7", "outdo": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0", "device": "cpu"},
        **{"threads": 1, "world_size": 1, "seed": seed, "command": command, "started": "2026-11-21T07:30:03+00:00"},
    }
    (folder / "environment.json").write_text(json.dumps(environment, indent=2))
    return folder


def add_step(
    folder: Path,
    step: int,
    *,
    steps: int,
    shape: tuple[int, int, int] | None = (4, 8, 24),
    vocabulary: Sequence[tuple[str, bytes]] = VOCABULARY,
    hostile: Sequence[str] | None = None,
    eval_every: int = 2,
    even: bool = False,
    seed: int = 0,
) -> None:
    """Write the tokens of `step` (groups, rollouts in each, tokens in each; None: not recorded), then its metrics."""
    random = numpy.random.default_rng([seed, step])
    progress = (step - 1) / max(1, steps - 1)
    metrics = _metrics(step, progress, random)
    if shape is not None:
        words = [*vocabulary, *((text, text.encode()) for text in hostile or ())]
        rows = _rows(step, progress, shape, len(vocabulary), words, even, random)
        parquet.write(folder, step, _table(step, rows))
        metrics |= _reward_metrics(rows)
    if eval_every and step % eval_every == 0:
        metrics |= _evaluation(progress)
    if hostile:
        metrics |= {f"rewards/{text[:100]}/mean": 0.5 for text in hostile} | {"rewards/\ud800/mean": 0.5}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, **metrics}) + "\n")


# ------------------------------------------------------------------------------------------------------------- metrics


def _metrics(step: int, progress: float, random: numpy.random.Generator) -> dict[str, float]:
    """Those of a run that learns, with the noise that a run has."""
    noise = float(random.normal(0, 0.02))
    right = min(0.98, max(0.02, 0.25 + 0.6 * (1 - math.exp(-3 * progress)) + 2 * noise))
    clipped = max(0.0, 0.05 + noise)
    return {
        **{
            "reward": right,
            "right": right,
            "reward_std": 0.4 - 0.2 * progress,
            "reward_group_std": 0.4 - 0.2 * progress,
            "frac_reward_zero_std": 0.3 + 0.3 * progress,
        },
        **{"frac_all_right": 0.1 + 0.4 * progress, "frac_all_wrong": 0.3 * (1 - progress), "rewards/exact/mean": right},
        **{"rewards/format/mean": 0.9, "completions/mean_length": 20 + 4 * progress},
        **{"completions/min_length": 8.0, "completions/max_length": 24.0, "completions/clipped_ratio": 0.02},
        **{"num_completions": 32.0, "num_scored": 32.0, "num_groups": 4.0, "num_trained_tokens": 640.0},
        **{"num_tokens": 640.0, "advantage": noise, "entropy": 0.9 * math.exp(-2 * progress) + abs(noise)},
        **{"clip_ratio/low_mean": clipped / 2, "clip_ratio/high_mean": clipped / 2, "clip_ratio/region_mean": clipped},
        **{"sampling/sampling_logp_difference/mean": 8e-4, "sampling/sampling_logp_difference/max": 3e-3},
        **{"kl": 0.05 * progress, "loss": noise, "loss/policy": noise, "loss/divergence": 0.002 * progress},
        **{"loss/entropy": 0.0, "grad_norm": 0.5 + abs(noise), "learning_rate": 1e-4, "updates/refused": 0.0},
        **{"updates/empty": 0.0, "passes/done": float(PASSES), "passes/stopped/maximum": 1.0, "seconds": 2.0},
        **{
            "tokens_per_second": 1000.0 + 1000 * noise,
            "moved_as_intended": 0.86 + noise,
            "moved_wrong_way": 0.1 - noise,
        },
        **{"moved_not": 0.04, "target_reached": 0.4, "overshoot": 0.05, "attained": 0.6, "unreachable": 0.2},
        **{"certain": 0.3 + 0.3 * progress, "moved/tokens": 320.0, "moved/groups": 2.0},
        "step_kl": 0.02 - 0.01 * abs(progress - 0.4),
    }


def _evaluation(progress: float) -> dict[str, float]:
    greedy = 0.25 + 0.6 * (1 - math.exp(-3 * progress))
    return {
        **{"eval/greedy": greedy, "eval/greedy_low": greedy - 0.08, "eval/greedy_high": greedy + 0.08},
        "eval/questions": 150.0,
        **{"eval/sampled": greedy - 0.1, "eval/sampled_low": greedy - 0.18, "eval/sampled_high": greedy - 0.02},
    }


def _reward_metrics(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Over the rollouts of a recorded step that were scored."""
    scored = [row for row in rows if row["reward"] is not None]
    mean = sum(row["reward"] for row in scored) / len(scored)
    unscored = {f"reward_status/{row['status']}": 1.0 for row in rows if row["reward"] is None}
    numbers = {"num_scored": float(len(scored)), "num_completions": float(len(rows))}
    return {"reward": mean, **numbers, "right": sum(row["right"] for row in scored) / len(scored), **unscored}


# ------------------------------------------------------------------------------------------------------------ rollouts


def _rows(
    step: int,
    progress: float,
    shape: tuple[int, int, int],
    plain: int,
    words: Sequence[tuple[str, bytes]],
    even: bool,
    random: numpy.random.Generator,
) -> list[dict[str, Any]]:
    """One for each rollout. `words` beyond the first `plain` are hostile: each prompt and completion gets one."""
    groups, group_size, length = shape
    rows: list[dict[str, Any]] = []
    for group in range(groups):
        hostile = list(range(plain, len(words)))
        prompt = [1, 3, 2, 4, *(hostile[group % len(hostile) :][:4])] if hostile else [1, 3, 2, 4]
        right = random.random(group_size) < 0.3 + 0.4 * progress + 0.1 * (group % 3)
        if group == 0:
            right[:2] = True, False  # one group at least has signal
        rewards: list[float | None] = [float(one) for one in right]
        if group == 1:
            rewards[-1] = None
        completions = _completions(right, length, even, random)
        for rollout, (completion, advantage) in enumerate(zip(completions, _advantages(rewards), strict=True)):
            if hostile:
                completion[2 % len(completion)] = hostile[(group * group_size + rollout) % len(hostile)]
            rows.append(
                {
                    **_about(step, group, rollout, prompt, completion, words),
                    **_outcome(rewards[rollout], advantage, completion, hostile=bool(hostile), words=words),
                    **_numbers(completion, advantage, group, rollout, groups, random),
                }
            )
    return rows


def _completions(
    right: NDArray[numpy.bool_], length: int, even: bool, random: numpy.random.Generator
) -> list[list[int]]:
    """Token ids: a common beginning, a parting of right and wrong a fifth of the way in, later ones of each rollout."""
    trunk = random.integers(1, len(WORDS), length)
    branches = {True: random.integers(1, len(WORDS), length), False: random.integers(1, len(WORDS), length)}
    part = max(1, length // 5)
    branches[True][part], branches[False][part] = 5, 15  # " 19" or " 18"
    completions = []
    for one in right:
        own = random.integers(1, len(WORDS), length)
        leaves = part + 1 + int(random.integers(0, max(1, length // 2)))
        ids = numpy.concatenate([trunk[:part], branches[bool(one)][part:leaves], own[leaves:]])[:length]
        end = length if even else int(random.integers(part + 2, length + 1))
        ids = ids[: end - 1]
        if len(ids) > part + 1 + len(TAIL):
            ids[-len(TAIL) :] = TAIL
        completions.append([*ids.tolist(), END])
    return completions


def _advantages(rewards: Sequence[float | None]) -> list[float]:
    """Reward less the group's mean, over its spread; 0 where nothing was scored or nothing differs."""
    scored = numpy.array([reward for reward in rewards if reward is not None])
    spread = float(scored.std(ddof=1)) if len(scored) > 1 else 0.0
    if spread == 0:
        return [0.0] * len(rewards)
    return [0.0 if reward is None else float((reward - scored.mean()) / (spread + 1e-4)) for reward in rewards]


def _about(
    step: int, group: int, rollout: int, prompt: list[int], completion: list[int], words: Sequence[tuple[str, bytes]]
) -> dict[str, Any]:
    pieces = [words[token][0] for token in completion]
    return {
        **{"step": step, "group": group, "rollout": rollout, "prompt_id": f"sum-{group}"},
        "prompt": "".join(words[token][0] for token in prompt),
        **{"prompt_token_ids": prompt, "prompt_pieces": [words[token][0] for token in prompt]},
        **{"text": "".join(pieces), "token_ids": completion, "pieces": pieces},
        **{"token_bytes": [words[token][1] for token in completion], "policy_version": step - 1, "temperature": 1.0},
    }


def _outcome(
    reward: float | None, advantage: float, completion: list[int], *, hostile: bool, words: Sequence[tuple[str, bytes]]
) -> dict[str, Any]:
    answer = "19" + (words[completion[2 % len(completion)]][0][:100] if hostile else "")
    return {
        **{"answer": answer, "reward": reward, "right": reward == 1.0},
        "reward_parts": {"exact": reward, "format": 0.0 if reward is None else 0.9},
        "status": ("timed out" + (words[-1][0][:100] if hostile else "")) if reward is None else "ok",
        **{"advantage": None if reward is None else advantage, "baseline": None, "finish_reason": "stop"},
    }


def _numbers(
    completion: list[int], advantage: float, group: int, rollout: int, groups: int, random: numpy.random.Generator
) -> dict[str, Any]:
    """The lists over one completion's tokens."""
    n = len(completion)
    mask = numpy.ones(n, bool)
    if n > 8 and rollout == 1:
        mask[1] = False  # a token that an environment wrote
    old = -random.exponential(0.7, n) * (random.random(n) > 0.2) - 1e-4
    sign = float(numpy.sign(advantage))
    moved = sign * numpy.abs(random.normal(0.12, 0.12, n)) * numpy.where(random.random(n) < 0.12, -1, 1)
    moved += random.normal(0, 0.01, n)  # what is not pushed moves a little too,
    moved[~mask] = -0.9  # or far, by what it has in common with what is
    new = numpy.minimum(old + moved, -1e-6)
    last = old + 0.75 * (new - old)
    ratio = numpy.exp(last - old)
    up, down = math.log1p(CLIP_HIGH), math.log1p(-CLIP_LOW)
    bound = old + (up if sign > 0 else down)
    clip = numpy.full(n, "free", object)
    if sign > 0:
        clip[bound > 0], clip[ratio >= 1 + CLIP_HIGH] = "unreachable", "high"
    elif sign < 0:
        clip[ratio <= 1 - CLIP_LOW] = "low"
    else:
        clip[:] = "neutral"
    clip[~mask] = "environment"
    ref = numpy.minimum(old - random.normal(0, 0.05, n), -1e-6)
    weight = numpy.where(mask, advantage / 640, 0.0)
    passes = numpy.where(numpy.isin(clip, ("high", "low")), PASSES - 1, PASSES)
    measured = group % 2 == 0 or groups == 1
    bound = numpy.where(mask & (sign != 0), bound, numpy.nan)
    push, pull = weight * passes, numpy.where(mask, -BETA * (1 - numpy.exp(ref - last)) / 640, 0.0)
    return {
        **{"measured": measured, "loss_mask": mask.tolist(), "rollout_logprobs": old + random.normal(0, 1e-3, n)},
        **{"old_logprobs": old, "new_logprobs": new if measured else None, "ref_logprobs": ref, "values": None},
        **{"advantages": numpy.where(mask, advantage, 0.0), "target": None, "ratio": ratio, "clip": clip.tolist()},
        "bound": [None if math.isnan(each) else float(each) for each in bound],
        **{"entropy": random.gamma(1.0, 0.5, n), "policy_push": push, "kl_pull": pull, "weight": weight},
        **{"net_push": push + pull, "share": mask.astype(float)},  # as if no two answers had a token in common
    }


_REALS = pyarrow.list_(pyarrow.float32())
_SCHEMA = pyarrow.schema(
    {
        **{name: pyarrow.int32() for name in ("step", "group", "rollout")},
        **dict.fromkeys(("prompt_id", "prompt", "answer", "text"), pyarrow.string()),
        **{"prompt_token_ids": pyarrow.list_(pyarrow.int32()), "prompt_pieces": pyarrow.list_(pyarrow.string())},
        **{"token_ids": pyarrow.list_(pyarrow.int32()), "pieces": pyarrow.list_(pyarrow.string())},
        **{"token_bytes": pyarrow.list_(pyarrow.binary()), "reward": pyarrow.float64()},
        "reward_parts": pyarrow.struct({"exact": pyarrow.float64(), "format": pyarrow.float64()}),
        **{"status": pyarrow.string(), "right": pyarrow.bool_(), "advantage": pyarrow.float64()},
        **{"baseline": pyarrow.float64(), "finish_reason": pyarrow.string(), "policy_version": pyarrow.int64()},
        **{"temperature": pyarrow.float64(), "measured": pyarrow.bool_(), "loss_mask": pyarrow.list_(pyarrow.bool_())},
        **dict.fromkeys(("rollout_logprobs", "old_logprobs", "new_logprobs", "ref_logprobs", "values"), _REALS),
        **dict.fromkeys(("advantages", "target", "bound", "ratio"), _REALS),
        "clip": pyarrow.list_(pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
        **dict.fromkeys(("entropy", "policy_push", "kl_pull", "net_push", "share", "weight"), _REALS),
    }
)


def _table(step: int, rows: list[dict[str, Any]]) -> pyarrow.Table:
    about = {"format": 1, "step": step, "version": "0.1.0", "method": "grpo", "model": "models/small"}
    return pyarrow.Table.from_pylist(rows, _SCHEMA.with_metadata({b"outdo": json.dumps(about).encode()}))
