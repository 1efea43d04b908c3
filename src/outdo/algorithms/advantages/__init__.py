"""Advantages: `group` and `best` compute them from rewards and groups, `teacher`, `token`, `tree` and
`turns` from batches."""

from outdo.algorithms.advantages.base import Advantage, chain, compute_advantages, fill_right, per_token, rewards_of
from outdo.algorithms.advantages.best import best_of_group, max_rl, pass_at_k
from outdo.algorithms.advantages.group import (
    RewardAdvantage,
    batch_standardised,
    gpg,
    group_centred,
    group_standardised,
    leave_one_out,
    reward,
    sign,
)
from outdo.algorithms.advantages.optimal_token import optimal_token
from outdo.algorithms.advantages.returns import (
    generalised_advantages,
    returns_to_go,
    terminal_rewards,
    token_rewards_of,
    whitened,
)
from outdo.algorithms.advantages.teacher import distillation, iw_opd, mopd, rlsd
from outdo.algorithms.advantages.token import (
    baseline_first,
    gae,
    gdpo,
    kl_penalty,
    length_weighted,
    reinforce_pp,
    reinforce_pp_baseline,
    rejection,
    remax,
    to_go,
    without_truncated,
)
from outdo.algorithms.advantages.tree import tree
from outdo.algorithms.advantages.turns import turn_centred, turn_to_go

__all__ = [
    "Advantage",
    "RewardAdvantage",
    "baseline_first",
    "batch_standardised",
    "best_of_group",
    "chain",
    "compute_advantages",
    "distillation",
    "fill_right",
    "gae",
    "gdpo",
    "generalised_advantages",
    "gpg",
    "group_centred",
    "group_standardised",
    "iw_opd",
    "kl_penalty",
    "leave_one_out",
    "length_weighted",
    "max_rl",
    "mopd",
    "optimal_token",
    "pass_at_k",
    "per_token",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "rejection",
    "remax",
    "returns_to_go",
    "reward",
    "rewards_of",
    "rlsd",
    "sign",
    "terminal_rewards",
    "to_go",
    "token_rewards_of",
    "tree",
    "turn_centred",
    "turn_to_go",
    "whitened",
    "without_truncated",
]
