"""What one step computes, as the plan needs it: questions, answers, lengths, passes, and what is kept in memory."""

from dataclasses import dataclass

from outdo.config.options import needs_reference, needs_teacher
from outdo.config.recipe import Recipe
from outdo.extras.plan.lengths import SPREAD, Lengths
from outdo.models.inspect_folder import ModelFacts
from outdo.run.check import cost
from outdo.run.check.estimate import Sample, lengths_of, lengths_text
from outdo.run.check.step_memory import DEFAULT_TOKENS

MEAN_SHARE = 0.4
"""The mean length as a share of the longest, where neither is known: of `data.max_prompt_tokens` and
`sampling.max_tokens`."""

ADAPTER_SHARE = 0.01
"""Weights of an adapter as a share of the model's, where the model's files do not tell."""


FROZEN = {"auto": 2, "bfloat16": 2, "float32": 4, "int8": 1, "nf4": 9 / 16}
"""Bytes of a weight that an adapter freezes, by the setting `weights`; published models are stored in bfloat16."""


@dataclass(frozen=True, slots=True)
class RewardWork:
    """What a reward model computes, for each token of a step."""

    flops: float  # to score it, and to learn from it
    divided: bool  # whether replicas that divide their models share the tokens; else the first one computes all


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training step."""

    prompts: int
    group: int
    prompt_tokens: float  # mean
    lengths: Lengths  # of the answers
    optimiser_steps: int = 1  # in one pass over the batch
    passes: int = 1
    scorings: float = 0.0  # forward passes over the batch besides those of training
    micro_batch_tokens: int = 16384  # computed at once on one rank
    checkpointing: bool = False  # of activations
    critics: int = 0  # models of the policy's size that are trained with it
    adapter: float = 0.0  # trained weights as a share of all; 0: all are trained
    frozen_bytes: float = 2  # of a weight that an adapter freezes
    rewards: tuple[RewardWork, ...] = ()  # reward models
    precise: bool = False  # activations in float32 instead of bf16
    tokens_per_forward: float = 1.0  # more than 1: speculative decoding
    sampled: float = 1.0  # answers sampled for each one that is trained on
    draft: float = 0.0  # bytes that a draft reads, as a share of the model's

    @property
    def sequences(self) -> int:
        return self.prompts * self.group

    @property
    def tokens(self) -> float:
        """Tokens of one step: prompts and answers, as they are trained on."""
        return self.sequences * (self.prompt_tokens + self.lengths.mean)

    @property
    def longest(self) -> float:
        return self.prompt_tokens + self.lengths.limit


def workload_of(
    recipe: Recipe,
    facts: ModelFacts,
    *,
    mean: float | None = None,
    prompt: float | None = None,
    spread: float | None = None,
    sample: Sample | None = None,
) -> tuple[Workload, list[str]]:
    """Return the step of a recipe, and what was assumed of its lengths.

    `mean` and `prompt` are the mean tokens of an answer and of a prompt, `spread` the deviation of the logarithm.
    `sample` are prompts of the data, whose mean and longest are used where `prompt` is not given.
    """
    train, limit = recipe.train, recipe.sampling.max_tokens
    answer = MEAN_SHARE * limit if mean is None else min(mean, limit)
    before, longest, of_prompts = _prompt_tokens(recipe, prompt, sample)
    lengths = Lengths(max(answer, 1.0), limit, SPREAD if spread is None else spread)
    assumed = []
    if mean is None:
        assumed.append(
            f"answers: {lengths.mean:,.0f} tokens on average, {MEAN_SHARE:.0%} of sampling.max_tokens; "
            "a measured mean (--answer-tokens) makes the plan better than anything else"
        )
    assumed += of_prompts
    if train.dynamic_sampling:
        assumed.append("train.dynamic_sampling: no group has to be replaced, so that nothing is sampled twice")
    tokens = train.micro_batch_tokens
    work = Workload(
        prompts=train.prompts,
        group=train.group_size,
        prompt_tokens=before,
        lengths=lengths,
        optimiser_steps=train.minibatches,
        passes=train.passes,
        scorings=_scorings(recipe),
        micro_batch_tokens=max(longest, DEFAULT_TOKENS if tokens == "auto" else tokens),
        checkpointing=train.gradient_checkpointing,
        critics=int(recipe.critic is not None and recipe.critic.name == "model"),
        adapter=adapter_share(facts, recipe),
        frozen_bytes=FROZEN[recipe.weights],
        precise=recipe.precision == "float32",
    )
    return work, assumed


def _prompt_tokens(recipe: Recipe, mean: float | None, sample: Sample | None) -> tuple[float, int, list[str]]:
    """Return the mean tokens of a prompt, the tokens of the longest sequence, and what was assumed."""
    longest = cost.longest_sequence(recipe)
    if mean is not None:
        return mean, longest, []
    if sample is None or not sample.kept:
        mean = MEAN_SHARE * recipe.data.max_prompt_tokens
        return mean, longest, [f"prompts: {mean:,.0f} tokens on average, {MEAN_SHARE:.0%} of data.max_prompt_tokens"]
    lengths = lengths_of(recipe, sample)
    mean = lengths.mean_prompt
    return mean, lengths.longest, [f"prompts: {mean:,.0f} tokens on average; {lengths_text(sample)}"]


def _scorings(recipe: Recipe) -> float:
    """Return the forward passes over a batch that train nothing: old log-probabilities, reference, teachers, record."""
    train = recipe.train
    old = 1.0 if train.passes * train.minibatches > 1 else 0.0
    reference = 1.0 if needs_reference(recipe) else 0.0
    teachers = float(len(recipe.teachers)) if needs_teacher(recipe) else 0.0
    after = 1.0 if recipe.record.after == "all" else float(recipe.record.after) if recipe.record.every else 0.0
    return old + reference + teachers + after


def adapter_share(facts: ModelFacts, recipe: Recipe) -> float:
    """Return the weights of the recipe's adapter as a share of the model's."""
    if recipe.train.adapter is None:
        return 0.0
    if not facts.parameters or not facts.layer_matrices:
        return ADAPTER_SHARE
    options = recipe.train.adapter.options
    rank = options.get("rank", options.get("r", 8))
    return cost.adapter_size(facts, "bfloat16", rank=rank).trained / facts.parameters
