"""Train the quickstart's model in one process and one thread, for comparisons of hundreds of runs.

Advantages, objectives, optimisers and measures of targets are outdo's. The forward pass is written out for this one
architecture, and gives the same logits as transformers; equal answers are computed once. A run costs 10 to 20 seconds
of one core where `outdo train` costs 35.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from outdo.algorithms import advantages
from outdo.algorithms.advantages import Advantage, compute_advantages, per_token
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.objectives.presets import grpo
from outdo.algorithms.objectives.target.objective import target, target_essay
from outdo.algorithms.progress import attained
from outdo.extras.quickstart.model import ALPHABET, END, SPECIAL
from outdo.models.optimiser import Optimiser, OptimiserSettings, adamw, polyak, sgd
from outdo.models.schedules import constant
from outdo.types import Batch, TokenScores

LAYERS, HEADS, KEYS, WIDTH, LONGEST = 4, 4, 2, 32, 32
TOKENS = {character: index for index, character in enumerate(ALPHABET, len(SPECIAL))}
STOP = SPECIAL.index(END)
OBJECTIVES = {"grpo": partial(grpo, beta=0.0), "target": target, "target_essay": target_essay}
ALGORITHMS = {"adamw": adamw, "sgd": sgd, "polyak": polyak}
PROMPTS, GROUP = 8, 8
Row = dict[str, str]
Settings = Mapping[str, Any]
Reward = Callable[[str, str], float]


class SmallModel(nn.Module):
    """The quickstart's Qwen3, from a model folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        weights = load_file(str(folder / "model.safetensors"))
        self.names = {name: name.replace(".", "_") for name in weights}
        for name, value in weights.items():
            self.register_parameter(self.names[name], nn.Parameter(value.clone()))
        angles = torch.arange(64.0)[:, None] * 10000.0 ** -(torch.arange(0, WIDTH, 2) / WIDTH)
        self.turns = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()

    def weight(self, name: str) -> Tensor:
        """Return a weight by its name in the file."""
        return getattr(self, self.names[f"model.{name}.weight"])

    def forward(self, tokens: Tensor, past: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Compute logits: [B, T] -> [B, T, V]. With `past`, the keys and values of earlier tokens, which it extends."""
        rows, length = tokens.shape
        start = past[0][0].shape[2] if past else 0
        hidden = functional.embedding(tokens, self.weight("embed_tokens"))  # [B, T, D]
        for layer in range(LAYERS):
            read = partial(self._linear, f"layers.{layer}")
            normed = _norm(hidden, self.weight(f"layers.{layer}.input_layernorm"))
            query, key, value = (
                read(f"self_attn.{name}_proj", normed).view(rows, length, -1, WIDTH) for name in ("q", "k", "v")
            )
            query, key = (
                self._turned(_norm(each, self.weight(f"layers.{layer}.self_attn.{name}_norm")).transpose(1, 2), start)
                for name, each in (("q", query), ("k", key))
            )
            value = value.transpose(1, 2)
            if past is not None:
                key, value = torch.cat([past[layer][0], key], 2), torch.cat([past[layer][1], value], 2)
                past[layer] = key, value
            key, value = (each.repeat_interleave(HEADS // KEYS, 1) for each in (key, value))
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
            hidden = hidden + read("self_attn.o_proj", mixed.transpose(1, 2).reshape(rows, length, -1))
            normed = _norm(hidden, self.weight(f"layers.{layer}.post_attention_layernorm"))
            gate = functional.silu(read("mlp.gate_proj", normed)) * read("mlp.up_proj", normed)
            hidden = hidden + read("mlp.down_proj", gate)
        return _norm(hidden, self.weight("norm")) @ self.weight("embed_tokens").T

    def scores(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log πθ and the entropy of every token but the first, where both are 0: [B, T] -> two [B, T]."""
        logprobs = self(tokens)[:, :-1].log_softmax(-1)  # [B, T - 1, V]
        entropy = -(logprobs.exp() * logprobs).sum(-1).detach()
        chosen = logprobs.gather(-1, tokens[:, 1:, None]).squeeze(-1)
        return functional.pad(chosen, (1, 0)), functional.pad(entropy, (1, 0))

    @torch.no_grad()
    def sample(self, prompts: Tensor, random: torch.Generator, *, greedy: bool = False) -> list[list[int]]:
        """Sample an answer to each prompt, of at most `LONGEST` tokens: [B, P] -> B lists."""
        nothing = torch.zeros(len(prompts), KEYS, 0, WIDTH)
        past = [(nothing, nothing)] * LAYERS
        logits, answers = self(prompts, past)[:, -1], prompts[:, :0]
        while answers.shape[1] < LONGEST and not (answers == STOP).any(1).all():
            below = logits.softmax(-1).cumsum(-1) < torch.rand(len(prompts), 1, generator=random)  # [B, V]
            chosen = logits.argmax(-1) if greedy else below.sum(-1).clamp(max=below.shape[1] - 1)
            answers = torch.cat([answers, chosen[:, None]], 1)
            logits = self(chosen[:, None], past)[:, -1]
        return [row[: row.index(STOP) + 1] if STOP in row else row for row in answers.tolist()]

    def _linear(self, layer: str, name: str, values: Tensor) -> Tensor:
        return values @ self.weight(f"{layer}.{name}").T

    def _turned(self, values: Tensor, start: int) -> Tensor:
        """Apply the rotary embedding from position `start` on."""
        cosine, sine = (each[start : start + values.shape[2]] for each in self.turns)
        first, second = values.chunk(2, -1)
        return values * cosine + torch.cat([-second, first], -1) * sine


def _norm(values: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(values, (values.shape[-1],), weight, 1e-6)


def exact(answer: str, right: str) -> float:
    """Return 1 if the text after # is right."""
    return float(answer.rpartition("#")[2] == right)


def digits(answer: str, right: str) -> float:
    """Return the share of the digits after # that are right."""
    found = answer.rpartition("#")[2]
    return sum(a == b for a, b in zip(found, right, strict=False)) / max(len(found), len(right))


@cache
def rows(file: Path) -> list[Row]:
    """Read a file of questions."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def answered(model: SmallModel, questions: Sequence[Row], random: torch.Generator, **options: Any) -> list[list[int]]:
    """Return the tokens of an answer to each question."""
    prompts = [[TOKENS[character] for character in row["prompt"]] for row in questions]
    return model.sample(torch.tensor(prompts), random, **options)


def text(answer: Sequence[int]) -> str:
    """Decode an answer, without its end."""
    return "".join(ALPHABET[token - len(SPECIAL)] for token in answer if token >= len(SPECIAL))


def accuracy(model: SmallModel, questions: Sequence[Row], *, greedy: bool = False) -> float:
    """Return the share of right answers, one to each question, always with the same random numbers."""
    answers = answered(model, questions, torch.Generator().manual_seed(77), greedy=greedy)
    return fmean(exact(text(answer), row["answer"]) for row, answer in zip(questions, answers, strict=True))


def sampled_batch(model: SmallModel, questions: Sequence[Row], reward: Reward, random: torch.Generator) -> Batch:
    """Sample and score the groups of a step."""
    asked = [row for row in questions for _ in range(GROUP)]
    answers = answered(model, asked, random)
    prompts = [[TOKENS[character] for character in row["prompt"]] for row in asked]
    batch = Batch.of_tokens(prompts, answers, group=[number // GROUP for number in range(len(asked))])
    values = [reward(text(answer), row["answer"]) for row, answer in zip(asked, answers, strict=True)]
    return batch.with_(rewards=torch.tensor(values))


def called(options: Settings, known: Mapping[str, Any]) -> Any:
    """Call a function by its name, with the other options as arguments."""
    return known[options["name"]](**{key: value for key, value in options.items() if key != "name"})


def advantage_of(options: Settings) -> Advantage:
    """Return an advantage by its name and options."""
    given = {key: value for key, value in options.items() if key != "name"}
    function = partial(getattr(advantages, options["name"]), **given)
    return function if options["name"] == "tree" else per_token(function)


def run(settings: Settings, files: Mapping[str, Path], reward: Reward) -> dict[str, Any]:
    """Train with the settings of a run; return its measures, with a value for every step where they are lists."""
    torch.set_num_threads(1)
    model, seed = SmallModel(files["model"]), settings["seed"]
    training, held_out = rows(files["questions"]), rows(files["held_out"])[:256]
    order = torch.randperm(len(training), generator=torch.Generator().manual_seed(seed)).tolist()
    random = torch.Generator().manual_seed(1000 + seed)
    optimiser = Optimiser(model, optimiser_settings(settings))
    objective, advantage = called(settings["objective"], OBJECTIVES), advantage_of(settings["advantage"])
    measures: list[dict[str, Any]] = []
    curve: list[list[float]] = []
    for step in range(1, settings["steps"] + 1):
        questions = [training[order[(step - 1) * PROMPTS + number]] for number in range(PROMPTS)]
        batch = sampled_batch(model, questions, reward, random)
        measures.append(trained(model, optimiser, batch, objective, advantage, settings["passes"]))
        if step % settings["eval_every"] == 0:
            curve.append([step, accuracy(model, held_out), accuracy(model, held_out, greedy=True)])
    return {"curve": curve, **{name: [step[name] for step in measures] for name in measures[0]}}


def optimiser_settings(settings: Settings) -> OptimiserSettings:
    """Return the settings of the optimiser of a run."""
    chosen = settings["algorithm"]
    algorithm = partial(ALGORITHMS[chosen["name"]], **{key: chosen[key] for key in chosen if key != "name"})
    return OptimiserSettings(
        lr=settings["lr"],
        schedule=partial(constant, warmup=settings["warmup"]),
        algorithm=algorithm,
        clip_norm=settings["clip_norm"],
    )


def trained(
    model: SmallModel, optimiser: Optimiser, batch: Batch, objective: Objective, advantage: Advantage, passes: int
) -> dict[str, float | None]:
    """Make the passes over a batch; return the measures of the step. Attained is measured before the last update."""
    distinct, place = batch.token_ids.unique(dim=0, return_inverse=True)
    with torch.no_grad():
        old, entropy = (each[place] for each in model.scores(distinct))
    batch = batch.with_(old_logprobs=old.where(batch.attention_mask, 0.0))
    batch = objective.prepare(compute_advantages(advantage, batch))
    logprobs = old
    for _ in range(passes):
        logprobs = model.scores(distinct)[0][place]
        loss = objective(TokenScores(logprobs=logprobs), batch).loss
        if loss.requires_grad:
            loss.backward()
            optimiser.step(float(loss.detach()))
    return {
        "reward": round(float(batch.rewards.mean()), 4),
        "entropy": round(float(entropy[batch.loss_mask].mean()), 4),
        "attained": None if batch.targets is None else round(attained(batch, logprobs.detach()), 3),
    }
