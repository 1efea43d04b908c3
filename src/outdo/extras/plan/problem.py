"""What is planned, and what of it fits into the devices of a layout."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from outdo.config.adapters import divided_adapter
from outdo.config.attention import sequence_replicas
from outdo.config.names import ULYSSES
from outdo.config.recipe import Recipe
from outdo.extras.plan import memory
from outdo.extras.plan.hardware import Cluster
from outdo.extras.plan.layout import ParallelLayout
from outdo.extras.plan.shapes import BFLOAT16, Shape
from outdo.extras.plan.timing import GRADIENT_BYTES, Fractions
from outdo.extras.plan.workload import Workload
from outdo.run.check import cost
from outdo.run.check.reward_memory import RewardSize, reward_memory, with_rewards

IN_PLACE = ("replicas", "sharded")
"""The kinds of layouts in which the built-in engine samples from the trainer's weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is planned."""

    shape: Shape
    cluster: Cluster
    work: Workload
    recipe: Recipe
    reference: bool
    rewards: Sequence[RewardSize] = ()

    def fractions(self, layout: ParallelLayout) -> Fractions:
        """Return what the software of a layout reaches: the built-in engine in place, and else vLLM."""
        card = self.cluster.card
        if layout.kind in IN_PLACE:
            return Fractions(training=card.training, decode=card.captured, update=card.update, launch=card.launch)
        return Fractions(training=card.training, decode=card.decode, update=card.update)

    @property
    def usable(self) -> float:
        return memory.USABLE * self.cluster.card.memory

    @property
    def trained_bytes(self) -> float:
        """The bytes of a weight that a trainer holds."""
        return self.work.frozen_bytes if self.work.adapter else cost.FLOAT32

    def sampled_in_place(self, kind: str) -> tuple[float, float]:
        """Return `weight_bytes` and `held_bytes` of a layout of this kind, in which trainers sample.

        Replicas keep bfloat16 copies of trained weights to sample. Divided models gather their weights, and convert
        them in each step: it reads a weight, writes its copy, and reads that.
        """
        converts = not (self.work.adapter or self.work.precise)
        if kind == "sharded":
            return self.trained_bytes + 2 * BFLOAT16 * converts, self.trained_bytes
        return BFLOAT16 if converts else self.trained_bytes, BFLOAT16 * converts

    @property
    def divisible(self) -> bool:
        """Whether outdo divides the model: it divides the base of some adapters, and no adapter."""
        return not any(divided_adapter(memory.on_devices(self.recipe, 2)))

    def work_of(self, layout: ParallelLayout) -> Workload:
        """Return the work with the micro-batches of one device: those that share sequences divide their tokens."""
        return replace(self.work, micro_batch_tokens=-(-self.work.micro_batch_tokens // layout.sequence))

    def model_states(self, layout: ParallelLayout, *, offload: bool | None = None) -> dict[str, int]:
        """Return the bytes that stay on a device that trains; what is in main memory stays on none."""
        offload = layout.offload if offload is None else offload
        model_states = memory.model_states_of(
            self.shape,
            self.recipe,
            reference=self.reference,
            critic=self.work.critics > 0,
            adapter=self.work.adapter,
            frozen=self.work.frozen_bytes,
            shards=layout.shards,
            offload=offload,
        )
        shared = layout.shards > 1 and layout.staleness == 0
        rewards = [replace(reward, divided=reward.divided and shared) for reward in self.rewards]
        parts = reward_memory(rewards, memory.on_devices(self.recipe, layout.shards, offload=offload))
        engine = {cost.ENGINE: cost.ASLEEP} if layout.kind == "together" else {}
        return with_rewards(model_states, parts) | engine

    def trainer(self, layout: ParallelLayout) -> dict[str, int]:
        """Return the bytes of a device that trains, by purpose."""
        work = self.work_of(layout)
        gathered = memory.layers_gathered(self.shape, work) if layout.shards > 1 else 0
        return memory.trainer_memory(self.shape, work, model_states=self.model_states(layout), gathered=gathered)

    def main_memory(self, layout: ParallelLayout) -> dict[str, int]:
        """Return the bytes of the main memory of a machine that hold what its devices do not, by purpose."""
        if not layout.offload:
            return {}
        devices, on_device = min(layout.trainers, self.cluster.card.machine), self.model_states(layout)
        beside = {
            name: size - on_device.get(name, 0) for name, size in self.model_states(layout, offload=False).items()
        }
        return {name: devices * size for name, size in beside.items() if size}

    def misfit(self, layout: ParallelLayout) -> str:
        """Return why the trainer of a layout does not fit into its devices; empty if it does."""
        card, parts = self.cluster.card, self.trainer(layout)
        if cost.peak(parts) > self.usable:
            largest = max(parts, key=lambda name: parts[name])
            return (
                f"{cost.peak(parts) / 2**30:,.0f} GiB on each device, of which {parts[largest] / 2**30:,.0f} are "
                f"{largest}; {card.name} has {card.memory / 2**30:,.0f}, and {memory.USABLE:.0%} of it can be used"
            )
        needed, machine = sum(self.main_memory(layout).values()), min(layout.trainers, card.machine) * card.host
        if needed > memory.USABLE * machine:
            return f"{needed / 2**30:,.0f} GiB of main memory; a machine has {machine / 2**30:,.0f} (--card host=...)"
        return ""

    def arranged(self, layout: ParallelLayout, shards: Sequence[int]) -> Iterator[ParallelLayout]:
        """Yield the ways in which the trainer of a layout fits, those that change least first.

        Fewer shards come first, then devices that share sequences, then main memory. What the recipe says of the last
        two holds for all.
        """
        wanted = self.recipe.cluster.shard.offload
        main = [True] if wanted else [False] if self.work.adapter else [False, True]
        possible = [count for count in shards if count == 1 or self.divisible]
        for offload, sequence, count in product(main, self._sequences(layout.trainers), possible):
            divided = self._divided(layout, count, sequence, offload=offload and count > 1)
            if not self.misfit(divided):
                yield replace(divided, taken=self._taken(divided))

    def plain(self, layout: ParallelLayout, shards: int) -> ParallelLayout:
        """Return a layout with this number of shards, and what the recipe says beside."""
        sequence = sequence_replicas(self.recipe)
        offload = self.recipe.cluster.shard.offload and shards > 1
        return self._divided(layout, shards, sequence, offload=offload)

    def _divided(self, layout: ParallelLayout, shards: int, sequence: int, *, offload: bool) -> ParallelLayout:
        narrow = self.recipe.cluster.shard.reduce_dtype == "bfloat16" and shards > 1
        return replace(
            layout,
            shards=shards,
            sequence=sequence,
            offload=offload,
            gathered_bytes=self.trained_bytes,
            reduced_bytes=BFLOAT16 if narrow else GRADIENT_BYTES,
        )

    def _sequences(self, trainers: int) -> list[int]:
        """Return how many of so many devices may share a sequence: as many as the recipe says, or those of a machine.

        They have to divide the heads of the model.
        """
        most = min(trainers, self.cluster.card.machine)
        powers = [2**n for n in range(most.bit_length())]
        counts = [sequence_replicas(self.recipe)] if self.recipe.attention.name == ULYSSES else powers
        return [count for count in counts if trainers % count == 0 and self.shape.heads % count == 0]

    def _taken(self, layout: ParallelLayout) -> int:
        """Return the bytes of a device that are not for an engine: what stays."""
        if layout.kind == "apart":
            return 0
        return sum(size for name, size in self.model_states(layout).items() if not name.endswith(cost.PHASES))
