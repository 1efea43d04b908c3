"""All named pieces of outdo: the name that a recipe uses, and where the code is.

There is no registration: a name is a line in one of these tables, and a user's own code is `"file.py:name"` or
`"package.module:name"`. The tables contain only names, so nothing is imported.
"""

from collections.abc import Mapping
from typing import NamedTuple

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
    "prime_rl": f"{PRESETS}:prime_rl",
    "prime_rl_ipo": f"{PRESETS}:prime_rl_ipo",
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
    "target_essay": "outdo.algorithms.objectives.target.objective:target_essay",
}
DEFAULT_ADVANTAGE = {  # the advantage that a method was published with; all other methods: group_standardised
    "ppo": "gae",
    "dr_grpo": "group_centred",
    "dro": "group_centred",
    "prime_rl": "group_centred",
    "prime_rl_ipo": "group_centred",
    "reinforce": "reward",
    "reinforce_pp": "reinforce_pp",
    "rloo": "leave_one_out",
    "rloo_clip": "leave_one_out",
    "remax": "remax",
    "opo": "length_weighted",
    "gpg": "gpg",
    "distillation": "distillation",
    "rejection": "rejection",
    "target_essay": "sign",
}
ADVANTAGES = {
    "group_standardised": "outdo.algorithms.advantages.group:group_standardised",
    "group_centred": "outdo.algorithms.advantages.group:group_centred",
    "leave_one_out": "outdo.algorithms.advantages.group:leave_one_out",
    "batch_standardised": "outdo.algorithms.advantages.group:batch_standardised",
    "best_of_group": "outdo.algorithms.advantages.best:best_of_group",
    "pass_at_k": "outdo.algorithms.advantages.best:pass_at_k",
    "max_rl": "outdo.algorithms.advantages.best:max_rl",
    "gpg": "outdo.algorithms.advantages.group:gpg",
    "sign": "outdo.algorithms.advantages.group:sign",
    "reward": "outdo.algorithms.advantages.group:reward",
    "gdpo": "outdo.algorithms.advantages.token:gdpo",
    "length_weighted": "outdo.algorithms.advantages.token:length_weighted",
    "tree": "outdo.algorithms.advantages.tree:tree",
    "turn_to_go": "outdo.algorithms.advantages.turns:turn_to_go",
    "turn_centred": "outdo.algorithms.advantages.turns:turn_centred",
    "optimal_token": "outdo.algorithms.advantages.optimal_token:optimal_token",
    "gae": "outdo.algorithms.advantages.token:gae",
    "reinforce_pp": "outdo.algorithms.advantages.token:reinforce_pp",
    "reinforce_pp_baseline": "outdo.algorithms.advantages.token:reinforce_pp_baseline",
    "remax": "outdo.algorithms.advantages.token:remax",
    "distillation": "outdo.algorithms.advantages.token:distillation",
    "rejection": "outdo.algorithms.advantages.token:rejection",
}
GROUP_RELATIVE = frozenset(ADVANTAGES) - {"reward", "gae", "reinforce_pp", "remax", "distillation", "rejection"}
"""Advantages that compare the answers of one group with each other: they need at least two answers in a group."""

WITH_CRITIC = frozenset({"gae"})
WITH_REFERENCE = frozenset({"distillation"})
"""Advantages that need a model besides the policy. `requires` marks them too, but a check does not import the marks."""

NOT_OF_THE_GROUP = {
    "gae": "needs the values of a critic",
    "reinforce_pp": "compares its answers with those of all other groups",
    "distillation": "uses no reward",
    "optimal_token": "needs the probabilities of the policy",
}
"""Advantages of which it is not known, when a group is sampled, whether they are 0 in it, and why. `requires` marks
them too, but a check does not import the marks."""

NEEDS_RIGHT = frozenset({"rejection", "pass_at_k"})
"""The advantages that count right answers; `rejection` with `threshold` does not."""

FROM_ENGINE = frozenset({"prime_rl", "prime_rl_ipo"})
"""Objectives whose ratio is πθ / π_rollout, as with `bypass`."""

WITHOUT_RATIO = frozenset({"reinforce", "rloo", "remax", "opo", "gpg", "rejection"})
"""Objectives without a ratio: they do not correct for changes of the policy since it sampled."""

FILLED_FROM_RECIPE = ("length", "max_tokens", "weights")
"""Options of pieces whose values come from other settings of the recipe: the longest answer, the reward weights."""

LIBRARY_OPTIONS = {
    "trl": {"eps": 1e-4},
    "verl": {"eps": 1e-6},
    "openrlhf": {"eps": 1e-9, "ddof": 0},
    "areal": {"eps": 1e-5},
}
"""The defaults of an advantage's options for each `train.compat`."""

BASELINES = frozenset(
    {
        "group_standardised",
        "group_centred",
        "leave_one_out",
        "batch_standardised",
        "best_of_group",
        "max_rl",
        "gpg",
        "sign",
        "reinforce_pp_baseline",
    }
)
"""Advantages of whole answers, from whose tokens the KL can be subtracted afterwards."""

INCOMPATIBLE_WITH_KL_IN_REWARD = {
    "gdpo": "uses the parts of the reward, from which the KL is not subtracted",
    "pass_at_k": "compares rewards with 1, which no reward equals after the KL is subtracted",
    "rejection": "compares rewards with a threshold, which few rewards reach after the KL is subtracted",
    "distillation": "uses no reward",
    "gpg": "counts groups of equal rewards, of which even the smallest KL leaves none; use after_baseline",
    "max_rl": "divides by the mean reward, and where no answer is right only the KL is left of it; use after_baseline",
}
"""Advantages that do not work if the KL is subtracted from the reward, and why."""

WITHOUT_TURN_REWARDS = frozenset({"gdpo"})
"""Advantages that would lose the rewards of single turns, and refuse them."""

SCALED_IN_THE_GROUP = ("group_standardised", "sign", "turn_centred")
"""Advantages that are as large where rewards hardly differ as where they differ much."""

CALL_SIGNATURES = {  # the arguments that a user's own piece is called with, in order
    "level": "log_ratio, loss_mask",
    "surrogate": "log_ratio, logprobs, advantages, batch",
    "divergence": "logprobs, ref_logprobs",
    "correction": "logprobs, batch",
    "weight": "batch",
    "divergence_weight": "batch",
    "entropy_weight": "batch",
    "batch_transform": "batch",
    "kl_in_reward": "logprobs, ref_logprobs",
    "algorithm": "weights",
    "schedule": "step, total",
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
        "prime_rl",
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
COMPOSED_PIECES: Mapping[str, Mapping[str, str]] = {
    "level": LEVELS,
    "surrogate": SURROGATES,
    "divergence": DIVERGENCES,
    "weight": WEIGHTS,
    "correction": CORRECTIONS,
    "batch_transform": BATCH_TRANSFORMS,
    "divergence_weight": WEIGHTS,
    "entropy_weight": WEIGHTS,
}
"""The pieces of a composed objective that a recipe can replace with options of `train.objective`, and their names."""

COMPOSED_NUMBERS = {"beta": 0.0, "entropy_bonus": 0.0, "kl_ratio": False, "log_ratio_clamp": 20.0, "bypass": False}
"""The numbers of a composed objective that a recipe can set in the same way, and an example of each."""

LOWEST_LOSS_0 = frozenset({"target", "target_essay"})
"""Objectives whose loss is 0 at its minimum, as the optimiser `polyak` requires."""

NOT_COMPOSED = frozenset({"tpo", "target", "target_essay"})
"""Objectives that are not composed of these pieces."""

COEFFICIENTS = {
    "beta": "outdo.algorithms.adaptive:AdaptiveCoefficient",
    "entropy_bonus": "outdo.algorithms.adaptive:AdaptiveBonus",
}
"""The adaptive coefficient that a recipe gets if it has a table in the place of the number."""

QUANTISED = ("int8", "nf4")
"""Kinds of frozen `weights` whose layers have 8 or 4 bits a weight."""

REWARDS = BUILTIN
ALGORITHMS = {name: f"outdo.models.optimiser:{name}" for name in ("adamw", "adafactor", "adamw8bit", "sgd", "polyak")}
ON_WHOLE_WEIGHTS = ("adafactor", "adamw8bit")
"""Algorithms that torch or bitsandbytes cannot run on a part of a weight."""

SCHEDULES = {name: f"outdo.models.schedules:{name}" for name in ("constant", "linear", "cosine")}
STOPS = {"first_of": "outdo.algorithms.early_stopping:first_of"}
CRITICS = {"model": "outdo.models.critic:own_model", "head": "outdo.models.critic:own_head"}

ULYSSES = "ulysses"
"""The attention for which several replicas share the tokens of each sequence."""

ATTENTIONS = ("auto", "shared", "padded", "flash_attention_2", "flex_attention", ULYSSES)
"""The ways to compute attention, and the kernels of the shared way."""

ENVIRONMENT_REWARD = "environment"
"""The reward of a recipe whose environment gives all rewards, and the part of a reward that an environment adds."""

TOOLS = "tools"
"""The environment that is a list of functions."""

AGENT = "agent"
"""The environment that runs an agent, `run = "file.py:name"`."""

EPISODE = "file.py:Class"
"""Stands for every environment that is a class in the user's code."""

BY_ROW = "by_row"
"""Plays each question in the environment that its row names, of several."""

BUILTIN_ENGINE = "builtin"
"""The engine that samples from the trainer's own weights."""


# ---------------------------------------------------------------------------------------------------------- the extras


class ExtraKind(NamedTuple):
    """A kind of piece that an extra has: what checks its options, without torch, and what opens it."""

    check: str
    open: str


ENVIRONMENTS = {
    TOOLS: ExtraKind("outdo.extras.tools.check:CHECK", "outdo.extras.tools.environment:TOOLS"),
    AGENT: ExtraKind("outdo.extras.agents.check:CHECK", "outdo.extras.agents.environment:AGENT"),
    EPISODE: ExtraKind("outdo.extras.episodes.check:CHECK", "outdo.extras.episodes.environment:EPISODE"),
}
"""The kinds of environments: an `EnvironmentCheck` of `outdo.config.environments`, and an `EnvironmentKind` of
`outdo.run.assemble.environment`."""

ENGINES = {
    BUILTIN_ENGINE: ExtraKind(
        "outdo.extras.remote_engines.check:CHECK", "outdo.extras.remote_engines.processes:open_processes"
    ),
    "vllm": ExtraKind("outdo.extras.vllm.check:CHECK", "outdo.extras.vllm.engine:open_vllm"),
}
"""The engines with a copy of the weights: an `EngineCheck` of `outdo.config.engines`, and `open(policy, world, *, seed,
**options)`, which returns a maker: `maker(policy)` returns an `Engine` of `outdo.rollouts.engines.base`. The built-in
one has a copy in processes of its own."""

REMOTE_ENGINE = "outdo.extras.remote_engines.open:open_remote_engine"
"""What opens an engine with a copy of the weights, and proves each delivery of them."""

REMOTE_DEVICES = "outdo.extras.remote_engines.devices:device_mistakes"
"""What finds the mistakes in the devices of such an engine."""

POLICY_ON_FIRST_REPLICA = "outdo.extras.remote_engines.first_replica:GatheredPolicy"
"""The policy of several replicas, as an engine of the first one reads it."""

RAY_ENGINE = "outdo.extras.ray.actors:open_actors"
"""The built-in engine with `place = "ray"`."""

RAY_CHECK = "outdo.extras.ray.check:ray_mistakes"
"""What finds out whether Ray is installed."""

PLACES = {"ray": "outdo.extras.ray.rewards:RayReward"}
"""Where the worker processes of a reward may run, other than on this machine."""

PLACED_REWARDS = "outdo.extras.ray.rewards:placed_rewards"
"""What finds out whether there is room for the rewards that a recipe places."""

REPLICAS = "outdo.extras.replicas.command:run_by_replicas"
"""What starts the several processes of a run, and lets each of them meet the others."""

REPLICATED_ENGINE = "outdo.extras.replicas.engine:ReplicatedEngine"
"""The built-in engine of several replicas."""

ASYNCHRONOUS = "outdo.extras.staleness.asynchronous:AsynchronousRollouts"
PARTIAL_ROLLOUTS = "outdo.extras.staleness.partial_rollouts:PartialRollouts"
"""The rollouts of `train.max_staleness`: whole answers, or answers that newer weights continue."""

UPLOADS = {"hub": "outdo.extras.hub.upload:push"}
"""Where an exported model can be uploaded."""

CLIENTS = ("wandb", "tensorboard", "trackio", "mlflow")
"""Trackers whose client is an optional dependency, the module and the extra of the same name."""

TRACKERS = {
    **{name: f"outdo.extras.trackers.{name}:{name}" for name in CLIENTS},
    "on_end": "outdo.extras.trackers.hooks:on_end",
}

TRACKER_CHECK = "outdo.extras.trackers.check:tracker_mistakes"
"""What yields the mistakes in the trackers of a recipe."""

WATCHERS = {
    "track": "outdo.extras.trackers.watcher:tracking",
    "page": "outdo.extras.page.watcher:page",
    "record": "outdo.extras.record.recording:recording",
    "profile": "outdo.extras.profiler.watcher:profiling",
}
"""What watches the steps of a run, by what asks for it: a setting, `--profile`, or for record and page nothing at all.
The first one is closed last: trackers send the page."""
