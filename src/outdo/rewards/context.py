"""What a run gives its rewards."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outdo.rewards.limits import WorkerLimits
from outdo.utils.world import ALONE, World


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """What a reward may need besides its options."""

    limits: WorkerLimits = field(default_factory=WorkerLimits)
    """What its worker processes may use, if it has some."""
    secrets: Sequence[str] = ()
    """The secrets among its options, which must not appear in a reason."""
    folder: Path | None = None
    """The folder of the run, where a resumed run finds what the reward keeps there; `None` outside a run."""
    world: World = ALONE
    """The processes that may divide a reward which is a model (`World.divides_models`)."""
