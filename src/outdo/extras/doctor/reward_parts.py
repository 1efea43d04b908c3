"""The parts of the reward: how each changed over a run, and whether the run was trained on it."""

from dataclasses import dataclass

from outdo.extras.doctor.method import of_all_sampled, reads_verdicts
from outdo.extras.doctor.series import RunMetrics, Span, significant_change
from outdo.utils.reward_names import weights_by_name

PREFIX, SUFFIX = "rewards/", "/mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPart:
    """A part of the reward. It is only watched if its weight in the recipe is 0, and trained on if not."""

    name: str
    weight: float
    watched: bool
    ends: tuple[Span, Span] | None  # of its mean, as `first_and_last` gives them; None in a short run

    @property
    def change(self) -> float:
        """How much its mean changed; 0 if that can be chance, or is not known."""
        return significant_change(*self.ends) if self.ends else 0.0

    @property
    def gain(self) -> float:
        """How much more it earned: a part with a negative weight earns more if it falls."""
        return self.change if self.weight >= 0 else -self.change


def reward_parts(run: RunMetrics) -> list[RewardPart]:
    """Return the parts of the reward of which a run has metrics, sorted by name.

    What an environment gives has no weight in the recipe: it is trained on. So is the reward that says which answers
    are right, whatever its weight, if the advantage reads the verdicts. With dynamic sampling the means are those over
    all sampled answers.
    """
    weights = weights_by_name(run.setting("rewards"))
    prefix = of_all_sampled(run, PREFIX)
    verdicts = run.setting("eval.right") if reads_verdicts(run) else None
    metrics = {name for line in run.lines for name in line if name.startswith(prefix) and name.endswith(SUFFIX)}
    names = {metric: metric.removeprefix(prefix).removesuffix(SUFFIX) for metric in sorted(metrics)}
    return [
        RewardPart(
            name=name,
            weight=weights.get(name, 1.0),
            watched=weights.get(name) == 0 and name != verdicts,
            ends=run.first_and_last(metric),
        )
        for metric, name in names.items()
    ]
