"""Did the probability move: shares of tokens worked out by hand."""

import math
from collections.abc import Sequence

import pytest
import torch
from contexts import essay
from record_cases import groups_of, one_group, one_pass, rollout, rounded, step_of
from torch import Tensor

from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.objectives.presets import ppo
from outdo.algorithms.progress import target_metrics
from outdo.extras.record.movement import movement_metrics
from outdo.extras.record.tokens import token_record
from outdo.types import Batch


def moved(objective: Objective, batch: Batch, new: Tensor | None, **tokens: Tensor) -> dict[str, float]:
    """The metrics of a step of one pass, after which the policy is at `new`."""
    rows = groups_of([rollout(int(row.sum())) for row in batch.loss_mask])
    batch = objective.prepare(batch)
    assert batch.old_logprobs is not None
    step = step_of(rows, batch, one_pass(objective, batch, batch.old_logprobs, **tokens))
    return rounded(movement_metrics(token_record(step, objective, new), batch))


def at(*rows: Sequence[float]) -> Tensor:
    """log πθ of the answers' tokens, from their probabilities."""
    width = max(len(row) for row in rows)
    return torch.tensor([[1.0, *row, *[1.0] * (width - len(row))] for row in rows], dtype=torch.float64).log()


def test_shares_of_the_leverage_by_direction_of_movement():
    """Bounds are 0.6, 0.24 and 0.16. Gone: up, not at all, down as pushed; up against the push. All pushes are alike,
    so that a token counts by 1 - π_old: 0.5, 0.8, 0.8, 0.6."""
    batch = one_group([[0.5, 0.2], [0.2, 0.4]], [1.0, -1.0])
    found = moved(ppo(), batch, at([0.55, 0.2], [0.1, 0.45]))
    assert found == {
        "moved_as_intended": round((0.5 + 0.8) / 2.7, 6),
        "moved_wrong_way": round(0.6 / 2.7, 6),
        "moved_not": round(0.8 / 2.7, 6),
        "moved/tokens": 4.0,
        "moved/groups": 1.0,
        "target_reached": 0.25,  # 0.1 is beyond 0.16
        "overshoot": 0.25,
        "attained": round((0.05 + 0.0 + 0.04 - 0.05) / (0.1 + 0.04 + 0.04 + 0.08), 6),
        "unreachable": 0.0,
        "certain": 0.0,
        "cancelled": 0.0,
        "regularisation": 0.0,
        "step_kl": round(sum(ratio - 1 - math.log(ratio) for ratio in (1.1, 1.0, 0.5, 1.125)) / 4, 6),
    }


def test_pushes_of_answers_with_a_common_prefix_are_summed():
    """Three of four answers are bad, so that the sum of Â is -1: that the token went down is right for all of them."""
    batch = one_group([[0.5]] * 4, [2.0, -1.0, -1.0, -1.0], alike=True)
    found = moved(ppo(), batch, at(*[[0.4]] * 4))
    assert (found["moved_as_intended"], found["moved/tokens"]) == (1.0, 1.0)
    assert found["cancelled"] == 0.8  # of a push of 5 there is 1 left
    up = moved(ppo(), batch, at(*[[0.55]] * 4))
    assert up["moved_wrong_way"] == 1.0
    assert up["attained"] == -0.5  # 0.05 of the 0.1 down to 0.4, the other way; the good answer's bound does not count


def test_a_token_is_weighted_by_how_far_its_push_could_move_it():
    """Nine tenths of the weight is on the token that is a choice, whatever the certain one did."""
    batch = one_group([[0.1], [0.9]], [1.0, 1.0])
    assert moved(ppo(), batch, at([0.2], [0.8]))["moved_as_intended"] == 0.9


@pytest.mark.parametrize(
    ("progress", "reached", "overshot"),
    [(0.85, 0, 0), (0.95, 1, 0), (1.05, 1, 0), (1.15, 1, 1), (9.0, 1, 1), (-2, 0, 0)],
)
def test_a_bound_is_reached_after_nine_tenths_of_the_way(progress, reached, overshot):
    batch = one_group([[0.1]], [1.0])
    found = moved(ppo(), batch, at([0.1 * 1.2**progress]))
    assert (found["target_reached"], found["overshoot"]) == (reached, overshot)


def test_unmeasured_rows_and_unpushed_tokens_do_not_count():
    batch = one_group([[0.5, 0.5], [0.5, 0.5], [0.5]], [1.0, 1.0, 0.0])
    new = at([0.6, 0.6], [0.4, 0.4], [0.4])
    new[1] = math.nan
    found = moved(ppo(), batch, new)
    assert (found["moved_as_intended"], found["moved/tokens"], found["moved/groups"]) == (1.0, 2.0, 1.0)
    assert found["target_reached"] == 1.0


def test_unreachable_bounds_count_neither_as_reached_nor_as_missed():
    batch = one_group([[0.9, 0.5]], [1.0])
    found = moved(ppo(), batch, at([0.99, 0.6]))
    assert (found["target_reached"], found["attained"], found["unreachable"]) == (1.0, 1.0, 0.5)


def test_targets_of_the_objective_are_the_bounds():
    batch = one_group([[0.25, 0.36], [0.5, 0.4]], [1.0, -1.0])
    objective = essay(merge="none")
    new = at([0.4, 0.61], [0.2, 0.5])
    found, known = moved(objective, batch, new), rounded(target_metrics(objective.prepare(batch), new))
    assert found["attained"] == known["target/attained"]
    assert found["overshoot"] == known["target/overshoot"] == 0.25
    assert found["unreachable"] == known["target/unreachable"]
    assert (found["target_reached"], known["target/reached"]) == (0.5, 0.25)  # beyond counts as there
