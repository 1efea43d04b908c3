"""All named pieces of outdo: the name that a recipe uses, and where the code is.

There is no registration: a name is a line in one of these tables or a row in that of `outdo.config.methods`, and a
user's own code is `"file.py:name"` or `"package.module:name"`. The tables contain only names, so nothing is imported.
"""

from collections.abc import Mapping
from typing import NamedTuple

from outdo.config import methods
from outdo.rewards.loading import BUILTIN

OBJECTIVES = {name: facts.code for name, facts in methods.OBJECTIVES.items()}
ADVANTAGES = {name: facts.code for name, facts in methods.ADVANTAGES.items()}
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
        "nothing",
    )
}
DIVERGENCES = {name: f"outdo.algorithms.objectives.divergences:{name}" for name in ("k1", "k2", "k3")} | {
    "abs": "outdo.algorithms.objectives.divergences:absolute"
}
VOCABULARY_DIVERGENCES = {
    name: f"outdo.algorithms.vocabulary_divergences:{name}" for name in ("reverse_kl", "forward_kl", "jensen_shannon")
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
    "teacher_divergence": VOCABULARY_DIVERGENCES,
}
"""The pieces of a composed objective that a recipe can replace with options of `train.objective`, and their names."""

COMPOSED_NUMBERS = {
    "beta": 0.0,
    "entropy_bonus": 0.0,
    "kl_ratio": False,
    "log_ratio_clamp": 20.0,
    "bypass": False,
    "teacher_beta": 0.0,
    "echo": 0.0,
}
"""The numbers of a composed objective that a recipe can set in the same way, and an example of each."""

COEFFICIENTS = {
    "beta": "outdo.algorithms.adaptive:AdaptiveCoefficient",
    "entropy_bonus": "outdo.algorithms.adaptive:AdaptiveBonus",
}
"""The adaptive coefficient that a recipe gets if it has a table in the place of the number."""

QUANTISED = ("int8", "nf4")
"""Kinds of frozen `weights` whose layers have 8 or 4 bits a weight."""

REWARDS = BUILTIN
ALGORITHMS = {name: f"outdo.models.optimiser:{name}" for name in ("adamw", "adafactor", "adamw8bit", "sgd", "polyak")}
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

DEMONSTRATIONS = "outdo.extras.sft.demonstrations:demonstrations_of"
"""What encodes the answers that `data.demonstrations` names."""

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
