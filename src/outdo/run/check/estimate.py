"""The memory that a run takes, estimated before its model is loaded from what is known of its data and the machine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from outdo.config.engines import borrowed_share
from outdo.config.names import QUANTISED
from outdo.config.options import needs_reference
from outdo.config.recipe import Recipe
from outdo.models.inspect_folder import ModelFacts
from outdo.run.check import cost
from outdo.run.check.reward_memory import RewardSize, reward_memory, reward_sizes, with_rewards
from outdo.run.check.sequence_lengths import SequenceLengths
from outdo.run.check.teachers import teacher_memory
from outdo.utils.errors import UserError
from outdo.utils.text import counted


class Machine(NamedTuple):
    """What is known once torch is loaded."""

    errors: Sequence[str]  # faults that show only when the pieces of the recipe are built
    memory: int | None = None  # bytes of the device in all
    device: str | None = None  # the type of the device, also where the recipe leaves it to outdo
    adapter: int | None = None  # weights of the recipe's adapter
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    free: int | None = None  # bytes of main memory that nothing uses
    padded: bool = False  # whether each answer is computed with its prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The prompts of some questions of the data."""

    tokens: Mapping[str, int]  # of each prompt, by the id of its question; empty where they are not known
    of: int  # questions in the data
    longest: int  # tokens of a prompt that the run trains on, at most
    beside: Mapping[str, int] = field(default_factory=dict)  # of the longest texts outside the sample, for `too_long`

    @property
    def is_whole(self) -> bool:
        """Whether it has all questions."""
        return len(self.tokens) == self.of

    @property
    def kept(self) -> tuple[int, ...]:
        """The lengths of the prompts that the run trains on."""
        return tuple(tokens for tokens in self.tokens.values() if tokens <= self.longest)

    @property
    def trained(self) -> tuple[int, ...]:
        """The lengths of the prompts that the run trains on, also those beside the sample."""
        return tuple(tokens for tokens in {**self.tokens, **self.beside}.values() if tokens <= self.longest)

    @property
    def too_long(self) -> Mapping[str, int]:
        """The prompts that it does not train on, also those beside the sample."""
        return {name: tokens for name, tokens in {**self.tokens, **self.beside}.items() if tokens > self.longest}


class Estimate(NamedTuple):
    """The memory of a run, and what to say about it."""

    lengths: SequenceLengths  # with which it was estimated
    memory: Mapping[str, int]  # bytes by purpose
    alternatives: Mapping[str, Mapping[str, int]]  # the memory of full, LoRA and QLoRA
    notes: Sequence[str]
    warnings: Sequence[str]


def estimate(recipe: Recipe, facts: ModelFacts | None, sample: Sample, machine: Machine, held_out: int = 0) -> Estimate:
    """Estimate the memory of a run that evaluates `held_out` questions.

    Prompts have the lengths of those that it trains on, or of the longest allowed where none are known.
    """
    recipe = recipe.model_copy(update={"device": machine.device}) if machine.device else recipe
    lengths = lengths_of(recipe, sample, shared=recipe.attention.name != "padded" and not machine.padded)
    lengths = replace(lengths, evaluated=held_out * max(recipe.eval.greedy, recipe.eval.samples))
    rewards = reward_sizes(recipe)
    memory, alternatives = _memory(recipe, facts, machine, reward_memory(rewards, recipe, lengths.longest), lengths)
    notes = [*_not_downloaded(rewards), *([_lengths_note(lengths, sample)] if memory else [])]
    return Estimate(lengths, memory, alternatives, notes, list(_too_little_memory(memory, machine)))


def lengths_of(recipe: Recipe, sample: Sample, *, shared: bool = True) -> SequenceLengths:
    """Return the lengths of sampled prompts with the longest answers; without any, of the longest prompt allowed."""
    prompts = sample.kept or (sample.longest,)
    return SequenceLengths(prompts=prompts, completion=recipe.sampling.max_tokens, shared=shared)


def lengths_text(sample: Sample) -> str:
    """Return how long prompts are taken to be, and why."""
    if not sample.kept:
        return f"{sample.longest:,} tokens for each prompt, as many as are allowed, since the data were not tokenised"
    seen = f"{len(sample.tokens):,} of {counted(sample.of, 'question')}"
    return f"prompts of {min(sample.kept):,} to {max(sample.kept):,} tokens ({seen})"


def _lengths_note(lengths: SequenceLengths, sample: Sample) -> str:
    once = "once for its group" if lengths.shared else "once for each answer"
    return (
        f"memory: estimated with {lengths_text(sample)}, each computed {once}, and answers of sampling.max_tokens = "
        f"{lengths.completion:,}"
    )


def _not_downloaded(reward_models: Sequence[RewardSize]) -> Iterator[str]:
    for model in reward_models:
        if model.facts.folder is None and not model.facts.dequantised:
            yield f"reward model {model.facts.name}: not on this machine yet; the estimate of memory leaves it out"


def _too_little_memory(memory: Mapping[str, int], machine: Machine) -> Iterator[str]:
    needed = cost.peak(memory) if memory else 0
    if machine.memory is not None and needed > machine.memory:
        yield (
            f"memory: the run takes about {needed / 2**30:.1f} GiB at the peak, and the machine has "
            f"{machine.memory / 2**30:.1f} GiB; a smaller model, optim.algorithm = adafactor, or fewer train.prompts, "
            "train.group_size and sampling.max_tokens take less"
            + (", as does a smaller engine.gpu_memory_utilization" if cost.ENGINE in memory else "")
        )


def _memory(
    recipe: Recipe,
    facts: ModelFacts | None,
    machine: Machine,
    rewards: Mapping[str, int],
    lengths: SequenceLengths,
) -> tuple[Mapping[str, int], Mapping[str, Mapping[str, int]]]:
    """Return the memory of the run, and that of training all weights, LoRA and QLoRA; with that of its `rewards`
    and teachers.
    """
    if facts is None:
        return {}, {}

    awake = ("while sampling", "while rewarding") if rewards else ("while sampling",)
    teachers = teacher_memory(recipe, facts, lengths.longest)
    lent = cost.lent(borrowed_share(recipe.engine), machine.memory, awake)

    def complete(parts: Mapping[str, int]) -> dict[str, int]:
        return cost.with_fitting_copy(with_rewards(parts, rewards) | teachers | lent, machine.free)

    reference, critic = _has_reference(recipe), recipe.critic is not None and recipe.critic.name == "model"
    alternatives = cost.alternatives(
        facts, recipe, reference=reference, critic=critic, trained=machine.adapter, lengths=lengths
    )
    if not alternatives:
        return complete(cost.memory(facts, recipe, reference=reference, critic=critic, lengths=lengths)), {}
    completed = {name: complete(parts) for name, parts in alternatives.items()}
    has_adapter = recipe.train.adapter is not None or facts.adapter is not None
    trained = "full" if not has_adapter else "QLoRA" if recipe.weights in QUANTISED else "LoRA"
    return completed[trained], completed


def _has_reference(recipe: Recipe) -> bool:
    """Return whether the run has a reference; a user's objective without an option `beta` is assumed to need none."""
    try:
        return needs_reference(recipe)
    except UserError:  # no such objective, which is among the errors
        return False
