"""When rewards fail too often, the run stops and shows the first that did."""

from collections import Counter
from collections.abc import Sequence

from outdo.rewards.types import RewardInput, RewardOutput
from outdo.utils.errors import RewardError
from outdo.utils.text import one_line


def check_failures(scored: Sequence[RewardOutput], answered: Sequence[RewardInput], max_share: float) -> None:
    """Allow at most `max_share` (0 to 1) of a step's rewards to have failed, timed out or been non-finite.

    Raises:
        RewardError: there were more; the message has the counts and the first such completion, its verdict and reason.
    """
    failing = [(one, sample) for one, sample in zip(scored, answered, strict=True) if one.verdict.is_failure]
    if len(failing) <= max_share * len(scored):
        return
    counts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(one.verdict for one, _ in failing).items())
    first, sample = failing[0]
    raise RewardError(
        f"{len(failing)} of {len(scored)} rewards of this step have no value ({counts}); "
        f"allowed are {max_share:.0%}.\n"
        f"The first: {first.verdict}: {one_line(first.reason)}\n"
        f"Its completion: {one_line(sample.completion)}"
    )
