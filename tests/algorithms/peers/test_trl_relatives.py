"""Compare losses with TRL 1.16's RLOO trainer and its experimental GMPO trainer.

Both give an answer without a trained token the ratio 1. This adds its advantage to the loss but changes no gradient, so
in the batches here such an answer is in a group of equal rewards.
"""

from dataclasses import replace
from typing import Any

import pytest
from toys import rollout
from trl_cases import (
    GROUPS,
    Case,
    Outcome,
    assert_same,
    inputs_of,
    loss_of,
    made_up,
    outdo,
    trainer_options,
    trl,
    without_masks,
)

from outdo.algorithms.advantages import leave_one_out, per_token
from outdo.algorithms.objectives import presets
from outdo.algorithms.objectives.compat import compat
from outdo.types import Rollout

pytestmark = pytest.mark.usefixtures("in_both_precisions")
Groups = list[list[Rollout]]

EMPTY_AMONG_EQUALS: Groups = [
    [*GROUPS[0][:3], rollout(2, 0.0)],
    [*GROUPS[1][:3], rollout(0, 1.0)],
    [*GROUPS[2]],
]
LEFT_OUT = per_token(leave_one_out)


@pytest.mark.parametrize("extreme", [0.0, 4.0])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.5, 3.0)])
def test_rloo_clips_the_sequence_ratio_like_trl(rloo_trainer: Any, extreme: float, low: float, high: float) -> None:
    case = made_up(EMPTY_AMONG_EQUALS, extreme=extreme)
    expected = rloo_loss(rloo_trainer, case, epsilon_low=low, epsilon_high=high)
    ours = outdo(compat("trl", presets.rloo_clip(clip_low=low, clip_high=high)), case, LEFT_OUT)
    assert_same(ours, expected)


def rloo_loss(trainer: Any, case: Case, **options: Any) -> Outcome:
    """Compute the loss from rewards with the RLOO trainer, which has no mask except that of padding."""
    with trainer_options(trainer, beta=0.0, **options):
        inputs = inputs_of(trainer, without_masks(case))
        return loss_of(trainer, without_masks(case), inputs | {"completion_mask": case.batch.loss_mask.long()})


@pytest.mark.parametrize("extreme", [0.0, 15.0])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("bound", [0.2, 0.4])
def test_gmpo_matches_trl(gmpo_trainer: Any, extreme: float, beta: float, bound: float) -> None:
    """TRL's GMPO ignores `use_bias_correction_kl`: its divergence is k3 without the ratio."""
    case = made_up(EMPTY_AMONG_EQUALS, extreme=extreme)
    objective = replace(compat("trl", presets.gmpo(clip_low=bound, clip_high=2 * bound, beta=beta)), kl_ratio=False)
    options = {"beta": beta, "epsilon_low": bound, "epsilon_high": 2 * bound, "use_bias_correction_kl": True}
    assert_same(outdo(objective, case), trl(gmpo_trainer, case, **options))
