"""outdo improves a language model against its own past self: GRPO and its whole family.

Names are loaded when they are first used, so that `import outdo` needs neither torch nor transformers. Where an
objective and an advantage share a name (distillation, gpg, reinforce_pp, remax), import them from
`outdo.algorithms.objectives.presets` and `outdo.algorithms.advantages`, which hold all the others too.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from outdo.utils.extras import missing_extra

# transformers and PEFT import torchao and bitsandbytes, where they are installed. torchao reports kernels for GPUs that
# it cannot load, and calls a deprecated function of torch; bitsandbytes recommends kernels of the Hub that outdo does
# not use.
for _logger in ("torchao", "torch.utils._pytree", "bitsandbytes.backends.cpu.ops"):
    logging.getLogger(_logger).setLevel(logging.ERROR)

if TYPE_CHECKING:
    from outdo.algorithms.adaptive import AdaptiveBonus as AdaptiveBonus
    from outdo.algorithms.adaptive import AdaptiveCoefficient as AdaptiveCoefficient
    from outdo.algorithms.advantages import batch_standardised as batch_standardised
    from outdo.algorithms.advantages import best_of_group as best_of_group
    from outdo.algorithms.advantages import chain as chain
    from outdo.algorithms.advantages import gae as gae
    from outdo.algorithms.advantages import gdpo as gdpo
    from outdo.algorithms.advantages import group_centred as group_centred
    from outdo.algorithms.advantages import group_standardised as group_standardised
    from outdo.algorithms.advantages import iw_opd as iw_opd
    from outdo.algorithms.advantages import kl_penalty as kl_penalty
    from outdo.algorithms.advantages import leave_one_out as leave_one_out
    from outdo.algorithms.advantages import length_weighted as length_weighted
    from outdo.algorithms.advantages import max_rl as max_rl
    from outdo.algorithms.advantages import mopd as mopd
    from outdo.algorithms.advantages import per_token as per_token
    from outdo.algorithms.advantages import reinforce_pp_baseline as reinforce_pp_baseline
    from outdo.algorithms.advantages import rejection as rejection
    from outdo.algorithms.advantages import rlsd as rlsd
    from outdo.algorithms.advantages import sign as sign
    from outdo.algorithms.advantages import without_truncated as without_truncated
    from outdo.algorithms.early_stopping import first_of as first_of
    from outdo.algorithms.objectives.base import ComposedObjective as ComposedObjective
    from outdo.algorithms.objectives.base import Objective as Objective
    from outdo.algorithms.objectives.compat import compat as compat
    from outdo.algorithms.objectives.presets import bnpo as bnpo
    from outdo.algorithms.objectives.presets import cispo as cispo
    from outdo.algorithms.objectives.presets import clip_cov as clip_cov
    from outdo.algorithms.objectives.presets import dapo as dapo
    from outdo.algorithms.objectives.presets import dppo_kl as dppo_kl
    from outdo.algorithms.objectives.presets import dppo_tv as dppo_tv
    from outdo.algorithms.objectives.presets import dr_grpo as dr_grpo
    from outdo.algorithms.objectives.presets import dro as dro
    from outdo.algorithms.objectives.presets import gkd as gkd
    from outdo.algorithms.objectives.presets import gmpo as gmpo
    from outdo.algorithms.objectives.presets import grpo as grpo
    from outdo.algorithms.objectives.presets import grpo_clip as grpo_clip
    from outdo.algorithms.objectives.presets import gspo as gspo
    from outdo.algorithms.objectives.presets import gspo_token as gspo_token
    from outdo.algorithms.objectives.presets import kl_cov as kl_cov
    from outdo.algorithms.objectives.presets import likelihood as likelihood
    from outdo.algorithms.objectives.presets import luspo as luspo
    from outdo.algorithms.objectives.presets import opo as opo
    from outdo.algorithms.objectives.presets import ppo as ppo
    from outdo.algorithms.objectives.presets import prime_rl as prime_rl
    from outdo.algorithms.objectives.presets import prime_rl_ipo as prime_rl_ipo
    from outdo.algorithms.objectives.presets import reinforce as reinforce
    from outdo.algorithms.objectives.presets import rloo as rloo
    from outdo.algorithms.objectives.presets import rloo_clip as rloo_clip
    from outdo.algorithms.objectives.presets import sapo as sapo
    from outdo.algorithms.objectives.presets import vespo as vespo
    from outdo.algorithms.objectives.target.objective import target as target
    from outdo.algorithms.objectives.target.objective import target_essay as target_essay
    from outdo.algorithms.objectives.target.tpo import tpo as tpo
    from outdo.algorithms.requirements import Requires as Requires
    from outdo.algorithms.requirements import requires as requires
    from outdo.algorithms.vocabulary_divergences import forward_kl as forward_kl
    from outdo.algorithms.vocabulary_divergences import jensen_shannon as jensen_shannon
    from outdo.algorithms.vocabulary_divergences import reverse_kl as reverse_kl
    from outdo.algorithms.vocabulary_sums import token_entropy as token_entropy
    from outdo.algorithms.vocabulary_sums import token_logprobs as token_logprobs
    from outdo.data.prompts import Prompts as Prompts
    from outdo.data.prompts import tokenise as tokenise
    from outdo.data.questions import questions_from as questions_from
    from outdo.extras.agents.agent import Agent as Agent
    from outdo.extras.episodes.dialogue import Dialogue as Dialogue
    from outdo.extras.episodes.episode import Player as Player
    from outdo.extras.episodes.episode import Reply as Reply
    from outdo.extras.episodes.template import Template as Template
    from outdo.extras.episodes.tools import ToolBox as ToolBox
    from outdo.extras.page.notebook import show as show
    from outdo.extras.record.external import TokenValues as TokenValues
    from outdo.extras.record.external import record_step as record_step
    from outdo.extras.record.recorder import Recorder as Recorder
    from outdo.extras.record.trl import TrlRecord as TrlRecord
    from outdo.extras.reward_models.model import RewardModel as RewardModel
    from outdo.extras.reward_models.online_model import OnlineRewardModel as OnlineRewardModel
    from outdo.extras.sft.sft import sft as sft
    from outdo.loop import in_turn as in_turn
    from outdo.loop import train as train
    from outdo.models.bundle import Models as Models
    from outdo.models.critic import Critic as Critic
    from outdo.models.critic import own_head as own_head
    from outdo.models.critic import own_model as own_model
    from outdo.models.device import make_deterministic as make_deterministic
    from outdo.models.logprobs import chunked_scores as chunked_scores
    from outdo.models.logprobs import sequence_logprobs as sequence_logprobs
    from outdo.models.optimiser import OptimiserSettings as OptimiserSettings
    from outdo.models.optimiser import adafactor as adafactor
    from outdo.models.optimiser import adamw as adamw
    from outdo.models.optimiser import adamw8bit as adamw8bit
    from outdo.models.optimiser import polyak as polyak
    from outdo.models.optimiser import sgd as sgd
    from outdo.models.policy import Policy as Policy
    from outdo.models.reference import load_reference as load_reference
    from outdo.models.scorer import BatchSizes as BatchSizes
    from outdo.models.teacher import Teacher as Teacher
    from outdo.rewards import load_reward as load_reward
    from outdo.rollouts.engines.base import Engine as Engine
    from outdo.rollouts.engines.builtin import BuiltinEngine as BuiltinEngine
    from outdo.rollouts.engines.sampling import SamplingParams as SamplingParams
    from outdo.rollouts.environments.base import Environment as Environment
    from outdo.rollouts.environments.base import GroupSampler as GroupSampler
    from outdo.rollouts.environments.dynamic_sampling import DynamicSampling as DynamicSampling
    from outdo.rollouts.environments.single_turn import SingleTurn as SingleTurn
    from outdo.run.evaluation.evaluation import evaluate as evaluate
    from outdo.run.metrics.metrics import step_metrics as step_metrics
    from outdo.types import Batch as Batch
    from outdo.types import Completion as Completion
    from outdo.types import FinishReason as FinishReason
    from outdo.types import Group as Group
    from outdo.types import Prompt as Prompt
    from outdo.types import Request as Request
    from outdo.types import Rollout as Rollout
    from outdo.types import Sampled as Sampled
    from outdo.types import Step as Step
    from outdo.types import Terms as Terms
    from outdo.types import TokenScores as TokenScores
    from outdo.types import Totals as Totals
    from outdo.types import Update as Update
    from outdo.utils.errors import OutdoError as OutdoError
    from outdo.utils.errors import UserError as UserError
    from outdo.utils.rng import Stream as Stream

__version__ = "0.1.0"

HOME = {  # public name: the module that defines it
    "AdaptiveBonus": "outdo.algorithms.adaptive",
    "AdaptiveCoefficient": "outdo.algorithms.adaptive",
    "Agent": "outdo.extras.agents.agent",
    "Batch": "outdo.types",
    "BatchSizes": "outdo.models.scorer",
    "BuiltinEngine": "outdo.rollouts.engines.builtin",
    "Completion": "outdo.types",
    "ComposedObjective": "outdo.algorithms.objectives.base",
    "Critic": "outdo.models.critic",
    "Dialogue": "outdo.extras.episodes.dialogue",
    "DynamicSampling": "outdo.rollouts.environments.dynamic_sampling",
    "Engine": "outdo.rollouts.engines.base",
    "Environment": "outdo.rollouts.environments.base",
    "FinishReason": "outdo.types",
    "Group": "outdo.types",
    "GroupSampler": "outdo.rollouts.environments.base",
    "Models": "outdo.models.bundle",
    "Objective": "outdo.algorithms.objectives.base",
    "OnlineRewardModel": "outdo.extras.reward_models.online_model",
    "OptimiserSettings": "outdo.models.optimiser",
    "OutdoError": "outdo.utils.errors",
    "Player": "outdo.extras.episodes.episode",
    "Policy": "outdo.models.policy",
    "Prompt": "outdo.types",
    "Prompts": "outdo.data.prompts",
    "Recorder": "outdo.extras.record.recorder",
    "Reply": "outdo.extras.episodes.episode",
    "Request": "outdo.types",
    "Requires": "outdo.algorithms.requirements",
    "RewardModel": "outdo.extras.reward_models.model",
    "Rollout": "outdo.types",
    "Sampled": "outdo.types",
    "SamplingParams": "outdo.rollouts.engines.sampling",
    "SingleTurn": "outdo.rollouts.environments.single_turn",
    "Step": "outdo.types",
    "Stream": "outdo.utils.rng",
    "Teacher": "outdo.models.teacher",
    "Template": "outdo.extras.episodes.template",
    "Terms": "outdo.types",
    "TokenScores": "outdo.types",
    "TokenValues": "outdo.extras.record.external",
    "ToolBox": "outdo.extras.episodes.tools",
    "Totals": "outdo.types",
    "TrlRecord": "outdo.extras.record.trl",
    "Update": "outdo.types",
    "UserError": "outdo.utils.errors",
    "adafactor": "outdo.models.optimiser",
    "adamw": "outdo.models.optimiser",
    "adamw8bit": "outdo.models.optimiser",
    "batch_standardised": "outdo.algorithms.advantages",
    "best_of_group": "outdo.algorithms.advantages",
    "bnpo": "outdo.algorithms.objectives.presets",
    "chain": "outdo.algorithms.advantages",
    "chunked_scores": "outdo.models.logprobs",
    "cispo": "outdo.algorithms.objectives.presets",
    "clip_cov": "outdo.algorithms.objectives.presets",
    "compat": "outdo.algorithms.objectives.compat",
    "dapo": "outdo.algorithms.objectives.presets",
    "dppo_kl": "outdo.algorithms.objectives.presets",
    "dppo_tv": "outdo.algorithms.objectives.presets",
    "dr_grpo": "outdo.algorithms.objectives.presets",
    "dro": "outdo.algorithms.objectives.presets",
    "evaluate": "outdo.run.evaluation.evaluation",
    "first_of": "outdo.algorithms.early_stopping",
    "forward_kl": "outdo.algorithms.vocabulary_divergences",
    "gae": "outdo.algorithms.advantages",
    "gdpo": "outdo.algorithms.advantages",
    "gkd": "outdo.algorithms.objectives.presets",
    "gmpo": "outdo.algorithms.objectives.presets",
    "group_centred": "outdo.algorithms.advantages",
    "group_standardised": "outdo.algorithms.advantages",
    "grpo": "outdo.algorithms.objectives.presets",
    "grpo_clip": "outdo.algorithms.objectives.presets",
    "gspo": "outdo.algorithms.objectives.presets",
    "gspo_token": "outdo.algorithms.objectives.presets",
    "in_turn": "outdo.loop",
    "iw_opd": "outdo.algorithms.advantages",
    "jensen_shannon": "outdo.algorithms.vocabulary_divergences",
    "kl_cov": "outdo.algorithms.objectives.presets",
    "kl_penalty": "outdo.algorithms.advantages",
    "leave_one_out": "outdo.algorithms.advantages",
    "length_weighted": "outdo.algorithms.advantages",
    "likelihood": "outdo.algorithms.objectives.presets",
    "load_reference": "outdo.models.reference",
    "load_reward": "outdo.rewards",
    "luspo": "outdo.algorithms.objectives.presets",
    "make_deterministic": "outdo.models.device",
    "max_rl": "outdo.algorithms.advantages",
    "mopd": "outdo.algorithms.advantages",
    "opo": "outdo.algorithms.objectives.presets",
    "own_head": "outdo.models.critic",
    "own_model": "outdo.models.critic",
    "per_token": "outdo.algorithms.advantages",
    "polyak": "outdo.models.optimiser",
    "ppo": "outdo.algorithms.objectives.presets",
    "prime_rl": "outdo.algorithms.objectives.presets",
    "prime_rl_ipo": "outdo.algorithms.objectives.presets",
    "questions_from": "outdo.data.questions",
    "record_step": "outdo.extras.record.external",
    "reinforce": "outdo.algorithms.objectives.presets",
    "reinforce_pp_baseline": "outdo.algorithms.advantages",
    "rejection": "outdo.algorithms.advantages",
    "requires": "outdo.algorithms.requirements",
    "reverse_kl": "outdo.algorithms.vocabulary_divergences",
    "rloo": "outdo.algorithms.objectives.presets",
    "rloo_clip": "outdo.algorithms.objectives.presets",
    "rlsd": "outdo.algorithms.advantages",
    "sapo": "outdo.algorithms.objectives.presets",
    "sequence_logprobs": "outdo.models.logprobs",
    "sft": "outdo.extras.sft.sft",
    "sgd": "outdo.models.optimiser",
    "show": "outdo.extras.page.notebook",
    "sign": "outdo.algorithms.advantages",
    "step_metrics": "outdo.run.metrics.metrics",
    "target": "outdo.algorithms.objectives.target.objective",
    "target_essay": "outdo.algorithms.objectives.target.objective",
    "token_entropy": "outdo.algorithms.vocabulary_sums",
    "token_logprobs": "outdo.algorithms.vocabulary_sums",
    "tokenise": "outdo.data.prompts",
    "tpo": "outdo.algorithms.objectives.target.tpo",
    "train": "outdo.loop",
    "vespo": "outdo.algorithms.objectives.presets",
    "without_truncated": "outdo.algorithms.advantages",
}

__all__ = [*HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'outdo' has no attribute {name!r}")
    if missing := missing_extra(HOME[name], f"outdo.{name}"):
        raise AttributeError(missing)
    value = globals()[name] = getattr(import_module(HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOME})
