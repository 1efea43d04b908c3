"""Compare loss and gradient with TRL 1.16 in combinations of four options of its GRPOTrainer: the kind of loss, the
level of its ratio, the divergence from the reference, the weight for an engine that differs from the policy.
"""

from itertools import product
from typing import Any

import pytest
import torch
from trl_cases import KINDS, Kind, assert_same, engine_options, engine_weight, made_up, outdo, trl

KL = {"no KL": (0.0, True), "KL": (0.04, False), "KL × ρ": (0.04, True)}
BOUNDS = {"to 3": (None, 3.0), "from .5 to 3": (0.5, 3.0), "from .5": (0.5, None)}
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
PAIRS = [
    *((kl, None) for kl in KL),
    *(("KL × ρ", (mode, "to 3")) for mode in MODES),
    ("no KL", ("token_mask", "from .5")),
    ("KL", ("sequence_truncate", "from .5 to 3")),
]

GRID = [
    pytest.param(kind, level, kl, engine, id="-".join([kind.loss_type, level, kl, *(engine or ("no engine",))]))
    for kind, level, (kl, engine) in product(KINDS, ("token", "sequence"), PAIRS)
    # TRL refuses this combination: its W takes token weights
    if not (kind.loss_type == "vespo" and engine and engine[0].startswith("sequence"))
]


@pytest.mark.parametrize(("kind", "level", "kl", "engine"), GRID)
def test_loss_and_gradient_equal_trls(
    grpo_trainer: Any,
    in_both_precisions: torch.dtype,
    kind: Kind,
    level: str,
    kl: str,
    engine: tuple[str, str] | None,
) -> None:
    beta, kl_ratio = KL[kl]
    options = kind.options(importance_sampling_level=level, beta=beta, use_bias_correction_kl=kl_ratio)
    changes: dict[str, Any] = {"level": level, "beta": beta, "kl_ratio": kl_ratio}
    if engine:
        mode, bounds = engine
        options |= engine_options(mode, *BOUNDS[bounds])
        changes |= {"engine": engine_weight(mode, *BOUNDS[bounds])}
    objective = kind.like_trl(**changes)
    for extreme in (0.0, 15.0):
        case = made_up(extreme=extreme)
        assert_same(outdo(objective, case), trl(grpo_trainer, case, **options))
