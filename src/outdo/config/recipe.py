"""The recipe: all settings of a training run, with their types, defaults and one-line descriptions.

`outdo.config.file` reads and writes a recipe, `outdo.config.rules` finds settings that cannot work together. Below
`outdo.run`, no other folder of outdo takes a configuration object.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from outdo.config.checkpoints import Checkpoint
from outdo.config.data import Data
from outdo.config.fields import (
    BelowOne,
    Best,
    BestBy,
    Count,
    CountOrZero,
    Division,
    Fraction,
    GradientProducts,
    NamedPiece,
    NonNegative,
    PathText,
    Piece,
    Pieces,
    Positive,
    Rewards,
    RunName,
    Section,
    Shard,
    Threads,
    WeightedReward,
)
from outdo.config.methods import facts_of_advantage, facts_of_objective
from outdo.config.names import BUILTIN_ENGINE
from outdo.config.teachers import Teachers
from outdo.utils.reward_names import REWARD_MODEL


class ReferenceSync(Section):
    """Every how many steps the reference is updated, and the policy's share in it: 1 replaces the reference."""

    every: Count
    mix: Annotated[float, Field(gt=0, le=1)] = 1.0


class RewardLimits(Section):
    """Limits on the time, the failures and the processes of reward functions."""

    timeout: Positive = Field(default=10.0, description="longest time of one call of a reward function, in seconds")
    step_timeout: Positive | None = Field(
        default=None, description="longest time of all rewards of a step, in seconds; unset: no limit"
    )
    max_failed: Fraction = Field(
        default=0.5, description="largest share of a step's rewards that may fail before the run stops"
    )
    workers: Count | None = Field(
        default=None, description="processes of a function that takes one completion; unset: 1, for math one per core"
    )
    memory: Positive | None = Field(
        default=None, description="memory of each of these processes, in GiB (Linux); unset: half of the machine's"
    )
    environment: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(), description="names of further environment variables that these processes get, such as API keys"
    )

    @property
    def of_workers(self) -> dict[str, Any]:
        """The limits of the processes, as `load_reward` takes them."""
        return self.model_dump(include={"timeout", "workers", "memory", "environment"})

    @property
    def of_steps(self) -> dict[str, Any]:
        """The limits of the rewards of a step, as an environment takes them."""
        return self.model_dump(include={"max_failed", "step_timeout"})


class Sampling(Section):
    """How the engine samples answers in training."""

    temperature: NonNegative = Field(default=1.0, description="divides the logits, in sampling and in training")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="sample from the most likely tokens that together have this probability"
    )
    top_k: CountOrZero = Field(default=0, description="sample from the k most likely tokens; 0: from all")
    min_p: BelowOne = Field(
        default=0.0, description="sample from tokens with at least this share of the highest probability"
    )
    stop: Annotated[tuple[str | CountOrZero, ...], Field(strict=False)] = Field(
        default=(),
        description="texts and token ids that end an answer, besides the tokenizer's end-of-sequence token",
    )
    max_tokens: Count = Field(default=256, description="longest answer, in tokens")

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts in `stop`."""
        return tuple(stop for stop in self.stop if isinstance(stop, str))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The token ids in `stop`."""
        return tuple(stop for stop in self.stop if isinstance(stop, int))


class Train(Section):
    """One step: questions, answers, advantages, and the updates of the policy."""

    prompts: Count = Field(default=32, description="questions per step (P)")
    group_size: Count = Field(default=8, description="answers per question (G)")
    dynamic_sampling: CountOrZero = Field(
        default=0,
        description="largest number of further rounds that replace groups whose advantages are all 0",
    )
    max_staleness: CountOrZero = Field(
        default=0, description="steps by which sampling runs ahead of training; 0: they alternate; see staleness.md"
    )
    passes: Count = Field(default=1, description="passes over each batch (μ)")
    minibatches: Count = Field(default=1, description="optimiser steps within one pass")
    micro_batch_tokens: Count | Literal["auto"] = Field(
        default=16384, description="tokens in one forward pass, or auto: changes memory, not the gradient"
    )
    gradient_checkpointing: bool = Field(
        default=False, description="recompute activations in the backward pass: less memory, a third more time"
    )
    adapter: NamedPiece | None = Field(
        default=None,
        description='train only an adapter of PEFT: lora or {name = "lora", rank = 32, alpha = 64}; unset: all weights',
    )
    objective: NamedPiece = Field(
        default=Piece(name="grpo"), description='grpo, dapo, gspo ..., {name = "grpo", beta = 0.04} or file.py:name'
    )
    advantage: NamedPiece | None = Field(
        default=None, description="group_standardised, leave_one_out ... or file.py:name; unset: the objective's own"
    )
    kl_in_reward: NamedPiece | None = Field(
        default=None,
        description='KL from the reference, subtracted from the reward: {name = "k1", beta = 0.05}; unset: none',
    )
    mask_truncated: bool = Field(
        default=False,
        description="leave answers that were cut off, as at max_tokens, out of the loss (overlong filtering)",
    )
    critic: NamedPiece | None = Field(
        default=None,
        description='model, head or {name = "model", lr = 1e-5}; unset: model, if the advantage needs a critic',
    )
    stop: NamedPiece | None = Field(
        default=None, description='end the passes early: {name = "first_of", attained = 0.9, kl = 0.1}; unset: never'
    )
    compat: Literal["outdo", "trl", "verl", "openrlhf", "areal"] = Field(
        default="outdo", description="whose conventions to use where libraries differ (eps, clamps, empty rows, means)"
    )


class ReferenceSection(Section):
    """The reference policy: KL is measured from it."""

    model: PathText | None = Field(
        default=None, description="a model folder or a name on the Hub; unset: the policy at the start of the run"
    )
    sync: ReferenceSync | None = Field(
        default=None,
        description="update it from the policy, whose share is mix: {every = 20, mix = 0.6}; unset: never",
    )


class Optim(Section):
    """The optimiser and its learning rate. A schedule counts optimiser steps."""

    lr: Positive = Field(default=1e-6, description="learning rate after the warm-up")
    schedule: NamedPiece = Field(
        default=Piece(name="constant"),
        description='constant, linear or cosine (down to 0), {name = "cosine", warmup = 20} or file.py:name',
    )
    algorithm: NamedPiece = Field(
        default=Piece(name="adamw"),
        description='adamw, adafactor, adamw8bit, {name = "adamw", weight_decay = 0.1} or file.py:name',
    )
    clip_norm: Positive = Field(
        default=1.0, description="largest norm of the gradient; a larger gradient is scaled down to it"
    )


class Eval(Section):
    """Evaluation on held-out questions during the run."""

    every: CountOrZero = Field(
        default=0, description="steps between evaluations; 0: only before the first step and after the last"
    )
    rows: Count = Field(default=128, description="largest number of held-out questions, of each set that has a name")
    samples: CountOrZero = Field(default=1, description="answers sampled per question, at temperature 1; 0: none")
    greedy: bool = Field(default=True, description="also evaluate the greedy answer to each question")
    best: BestBy = Field(
        default=Best(),
        description="the best checkpoint is that with the highest share right of these answers, or else mean reward: "
        'greedy, sampled, or {name = "gsm8k/greedy", patience = 3}, which ends the run early',
    )
    right: str | None = Field(
        default=None,
        description="name of the reward that decides what is right, from 1 on; unset: the only matcher, or a verdict",
    )


class ClusterSection(Section):
    """The processes of a run that each hold all models."""

    replicas: Count | None = Field(
        default=None,
        description="processes that each hold all models, and divide sampling and training; unset: 1, or 2 for a small "
        "model on a CPU; see cluster.md",
    )
    shard: Division = Field(
        default=Shard(on=False),
        description="divide weights, gradients and moments among the replicas (FSDP2): true or {offload = true}; see "
        "cluster.md",
    )
    timeout: Positive = Field(
        default=1800.0, description="longest time that a replica waits for another one, in seconds"
    )

    @property
    def world_size(self) -> int:
        """The number of replicas; 1 until `outdo train` has chosen a number."""
        return self.replicas or 1


class Record(Section):
    """The record of every token: `tokens/step_000040.parquet` in the run folder."""

    every: CountOrZero = Field(default=1, description="steps between records; 0: no record")
    after: Fraction | Literal["all"] = Field(
        default=0.0625,
        description="share of the groups, or all, that is scored again after the update, to measure what changed",
    )
    top: CountOrZero = Field(
        default=0,
        description="most probable tokens recorded at each token of these groups, of policy and teachers; 0: none",
    )


class Recipe(Section):
    """All settings of a run."""

    model: PathText = Field(description="a model folder that from_pretrained loads, a .gguf file, or a name on the Hub")
    run: RunName | None = Field(
        default=None, description="run folder: a path, or a name in runs/; unset: chosen and printed"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="seed of all random numbers in the run")
    steps: Count = Field(
        default=100, description="number of steps; each samples, scores and trains on one batch of questions"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(default="auto", description="auto, cpu, cuda or mps")
    threads: Threads | None = Field(default=None, description="CPU threads; unset: torch's default")
    gradient_products: GradientProducts | None = Field(
        default=None, description="libraries of a CPU's matrix products in the backward pass; unset: by a measurement"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="dtype of products; trained weights are always float32; auto: bfloat16 on a GPU, float32 on a CPU",
    )
    weights: Literal["auto", "float32", "bfloat16", "int8", "nf4"] = Field(
        default="auto",
        description="weights of a model that an adapter freezes; auto: bfloat16 if its files are, else float32",
    )
    compile: bool = Field(default=False, description="compile the model with torch: slower start, faster steps")
    attention: NamedPiece = Field(
        default=Piece(name="auto"),
        description="shared: compute a group's prompt once; padded: for models that cannot; a kernel for shared; or "
        '{name = "ulysses", replicas = 2}, which share each sequence',
    )
    rewards: Rewards = Field(
        default=(WeightedReward(name="exact"),),
        description="exact, last_number, math, format ..., file.py:name, or a list of these or {name, weight, place}",
    )
    teachers: Teachers = Field(
        default=(),
        description="models that read the answers, for distillation: a path, policy, reference, or a list of "
        "{model, name, weight, hint}; see teachers.md",
    )
    track: Pieces = Field(default=(), description="wandb, tensorboard, trackio, mlflow, file.py:name, or a list")
    data: Data = Field(description="the questions to train on and to evaluate on")
    reward_limits: RewardLimits = Field(
        default=RewardLimits(), description="limits on the time, the failures and the processes of reward functions"
    )
    environment: NamedPiece | None = Field(
        default=None,
        description='{name = "tools", functions = "file.py:name"}, file.py:Class or agent, by_row; unset: one answer',
    )
    engine: NamedPiece = Field(
        default=Piece(name=BUILTIN_ENGINE),
        description='what samples: builtin, {name = "builtin", processes = 2}, {name = "vllm", python = "path"} ...',
    )
    sampling: Sampling = Field(default=Sampling(), description="how the engine samples answers in training")
    train: Train = Field(default=Train(), description="one step: questions, answers, advantages, updates")
    reference: ReferenceSection = Field(default=ReferenceSection(), description="the policy that KL is measured from")
    optim: Optim = Field(
        default=Optim(), description="the optimiser and its learning rate; a schedule counts optimiser steps"
    )
    eval: Eval = Field(default=Eval(), description="evaluation on held-out questions during the run")
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="the checkpoints on disk")
    record: Record = Field(default=Record(), description="the record of every token")
    cluster: ClusterSection = Field(
        default=ClusterSection(), description="the processes of a run that each hold all models"
    )

    @property
    def advantage(self) -> Piece:
        """The advantage of the recipe, or else the one that the objective was published with."""
        return self.train.advantage or Piece(name=facts_of_objective(self.train.objective.name).published_with)

    @property
    def advantage_requires(self) -> set[str]:
        """What the advantage requires of a batch, such as `values`; nothing is known of a user's own."""
        return facts_of_advantage(self.advantage.name).requires_with(self.advantage.options)

    @property
    def reward_functions(self) -> list[tuple[dict[str, Any], float]]:
        """The rewards that are not reward models: the specification that `load_reward` takes, and the weight."""
        functions = [reward for reward in self.rewards if reward.name != REWARD_MODEL]
        return [({"name": function.name, **self.options_of(function)}, function.weight) for function in functions]

    def options_of(self, reward: WeightedReward) -> dict[str, Any]:
        """Return the options that a reward gets; of those left out, some follow from other settings of the recipe."""
        filled: Mapping[str, Mapping[str, Any]] = {
            "overlong": {"max_tokens": self.sampling.max_tokens},
            REWARD_MODEL: {"device": self.device, "seed": self.seed},
        }
        options = {name: value for name, value in reward.options.items() if name != "place"}
        return {**filled.get(reward.name, {}), **options}

    @property
    def critic(self) -> Piece | None:
        """The critic of the recipe, or else a model of its own if the advantage needs a critic."""
        return self.train.critic or (Piece(name="model") if "values" in self.advantage_requires else None)
