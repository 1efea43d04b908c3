"""Every named piece of outdo, by the name a recipe uses for it, and where it is defined.

Nothing registers itself here or elsewhere: a name is a line in one of these tables, and anything else is the user's
own, as `"file.py:name"` or `"package.module:name"`. Only names: nothing is imported.
"""

from collections.abc import Mapping

from outdo.rewards.loading import BUILTIN

PRESETS = "outdo.algorithms.objectives.presets"
OBJECTIVES = {
    "grpo": f"{PRESETS}:grpo",
    "grpo_clip": f"{PRESETS}:grpo_clip",
    "ppo": f"{PRESETS}:ppo",
    "dr_grpo": f"{PRESETS}:dr_grpo",
    "dapo": f"{PRESETS}:dapo",
    "bnpo": f"{PRESETS}:bnpo",
    "gspo": f"{PRESETS}:gspo",
    "gspo_token": f"{PRESETS}:gspo_token",
    "luspo": f"{PRESETS}:luspo",
    "gmpo": f"{PRESETS}:gmpo",
    "clip_cov": f"{PRESETS}:clip_cov",
    "kl_cov": f"{PRESETS}:kl_cov",
    "cispo": f"{PRESETS}:cispo",
    "sapo": f"{PRESETS}:sapo",
    "vespo": f"{PRESETS}:vespo",
    "dppo_tv": f"{PRESETS}:dppo_tv",
    "dppo_kl": f"{PRESETS}:dppo_kl",
    "dro": f"{PRESETS}:dro",
    "reinforce": f"{PRESETS}:reinforce",
    "reinforce_pp": f"{PRESETS}:reinforce_pp",
    "rloo": f"{PRESETS}:rloo",
    "rloo_clip": f"{PRESETS}:rloo_clip",
    "remax": f"{PRESETS}:remax",
    "opo": f"{PRESETS}:opo",
    "gpg": f"{PRESETS}:gpg",
    "distillation": f"{PRESETS}:distillation",
    "rejection": f"{PRESETS}:likelihood",
    "tpo": "outdo.algorithms.objectives.target.tpo:tpo",
    "target": "outdo.algorithms.objectives.target.objective:target",
}
DEFAULT_ADVANTAGE = {  # the advantage a method was published with; the others: group_standardised
    "ppo": "gae",
    "dr_grpo": "group_centred",
    "dro": "group_centred",
    "reinforce": "reward",
    "reinforce_pp": "reinforce_pp",
    "rloo": "leave_one_out",
    "rloo_clip": "leave_one_out",
    "remax": "remax",
    "opo": "length_weighted",
    "gpg": "gpg",
    "distillation": "distillation",
    "rejection": "rejection",
    "target": "sign",
}
ADVANTAGES = {
    "group_standardised": "outdo.algorithms.advantages.group:group_standardised",
    "group_centred": "outdo.algorithms.advantages.group:group_centred",
    "leave_one_out": "outdo.algorithms.advantages.group:leave_one_out",
    "batch_standardised": "outdo.algorithms.advantages.group:batch_standardised",
    "best_of_group": "outdo.algorithms.advantages.group:best_of_group",
    "pass_at_k": "outdo.algorithms.advantages.group:pass_at_k",
    "max_rl": "outdo.algorithms.advantages.group:max_rl",
    "gpg": "outdo.algorithms.advantages.group:gpg",
    "sign": "outdo.algorithms.advantages.group:sign",
    "reward": "outdo.algorithms.advantages.group:reward",
    "gdpo": "outdo.algorithms.advantages.token:gdpo",
    "length_weighted": "outdo.algorithms.advantages.token:length_weighted",
    "gae": "outdo.algorithms.advantages.token:gae",
    "reinforce_pp": "outdo.algorithms.advantages.token:reinforce_pp",
    "reinforce_pp_baseline": "outdo.algorithms.advantages.token:reinforce_pp_baseline",
    "remax": "outdo.algorithms.advantages.token:remax",
    "distillation": "outdo.algorithms.advantages.token:distillation",
    "rejection": "outdo.algorithms.advantages.token:rejection",
}
GROUP_RELATIVE = frozenset(ADVANTAGES) - {"reward", "gae", "reinforce_pp", "remax", "distillation", "rejection"}
"""Advantages that compare the answers of one group with each other: a group of one tells them nothing."""

WITH_CRITIC = frozenset({"gae"})
WITH_REFERENCE = frozenset({"distillation"})
"""Advantages that need a model besides the policy, as `requires` marks them; a check does not load those marks."""

WITHOUT_RATIO = frozenset({"reinforce", "rloo", "remax", "opo", "gpg", "rejection"})
"""Objectives in which nothing makes up for the policy having moved since it sampled."""

FILLED_FROM_RECIPE = ("length", "max_tokens", "weights")
"""Options that a piece may ask for and a recipe need not repeat: the longest answer, the weights of the rewards."""

PEERS_EPS = {"trl": 1e-4, "verl": 1e-6, "openrlhf": 1e-9, "areal": 1e-5}
"""What `train.compat` puts in the place of an advantage's `eps` that the recipe leaves out."""

BLIND_TO_PENALTY = {
    "gdpo": "looks at the parts of the reward, where a penalty on the whole is not seen",
    "pass_at_k": "asks whether a reward is 1, which no reward is once KL was taken off it",
    "rejection": "asks whether a reward reaches its threshold, which few do once KL was taken off them",
    "distillation": "uses no reward",
}
"""Advantages that a KL taken off the reward would silently break, and why."""

CALL_SIGNATURES = {  # what a piece of one's own is called with, in order
    "level": "log_ratio, loss_mask",
    "surrogate": "log_ratio, logprobs, advantages, batch",
    "divergence": "logprobs, ref_logprobs",
    "correction": "logprobs, batch",
    "weight": "batch",
    "entropy_weight": "batch",
    "batch_transform": "batch",
    "kl_in_reward": "logprobs, ref_logprobs",
    "algorithm": "weights",
}

LEVELS = {
    name: f"outdo.algorithms.objectives.ratios:{name}"
    for name in ("token", "sequence", "sequence_token", "sequence_product")
}
SURROGATES = {
    name: f"outdo.algorithms.objectives.surrogates:{name}"
    for name in (
        "clip",
        "unclipped",
        "log_likelihood",
        "cispo",
        "sapo",
        "vespo",
        "gmpo",
        "dppo_tv",
        "dppo_kl",
        "dro",
        "kl_cov",
    )
}
DIVERGENCES = {name: f"outdo.algorithms.objectives.divergences:{name}" for name in ("k1", "k2", "k3")} | {
    "abs": "outdo.algorithms.objectives.divergences:absolute"
}
WEIGHTS = {
    name: f"outdo.algorithms.objectives.weights:{name}"
    for name in ("sequence_mean", "token_mean", "constant", "prompt_mean", "sequence_sum", "total")
}
CORRECTIONS = {
    name: f"outdo.algorithms.objectives.corrections:{name}"
    for name in ("none", "truncate", "mask", "sequence_mask", "reject", "off_policy_rows")
}
BATCH_TRANSFORMS = {
    name: f"outdo.algorithms.objectives.batch_transforms:{name}"
    for name in ("high_entropy", "without_covariant", "covariant")
}
FORMULA: Mapping[str, Mapping[str, str]] = {
    "level": LEVELS,
    "surrogate": SURROGATES,
    "divergence": DIVERGENCES,
    "weight": WEIGHTS,
    "correction": CORRECTIONS,
    "batch_transform": BATCH_TRANSFORMS,
    "entropy_weight": WEIGHTS,
}
"""The pieces of a preset that a recipe may exchange, as options of `train.objective`, and what may stand there."""

FORMULA_NUMBERS = {"beta": 0.0, "entropy_bonus": 0.0, "kl_ratio": False, "log_ratio_clamp": 20.0}
"""The numbers of a preset that a recipe may set in the same way, and an example of each."""

NOT_COMPOSED = frozenset({"tpo", "target"})
"""Objectives that are not made of those pieces."""

COEFFICIENTS = {
    "beta": "outdo.algorithms.adaptive:AdaptiveCoefficient",
    "entropy_bonus": "outdo.algorithms.adaptive:AdaptiveBonus",
}
"""What a table in the place of such a number makes: one that follows a target."""

REWARD_MODEL = "reward_model"
"""The reward that is learnt: a model, which only a run loads."""

REWARDS = BUILTIN | {REWARD_MODEL: "outdo.rewards.online_model:reward_model"}
ALGORITHMS = {name: f"outdo.models.optimiser:{name}" for name in ("adamw", "adafactor", "adamw8bit")}
STOPS = {"first_of": "outdo.algorithms.early_stopping:first_of"}
CRITICS = {"model": "outdo.models.critic:own_model", "head": "outdo.models.critic:own_head"}
