"""outdo improves a language model against its own past self: GRPO and its whole family.

Names are loaded when they are first used, so that `import outdo` needs neither torch nor transformers. Where an
objective and an advantage share a name (distillation, gpg, reinforce_pp, remax), they are in `outdo.objectives.presets`
and `outdo.advantages`, which hold all the others too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outdo.advantages import batch_standardised as batch_standardised
    from outdo.advantages import best_of_group as best_of_group
    from outdo.advantages import chain as chain
    from outdo.advantages import gae as gae
    from outdo.advantages import gdpo as gdpo
    from outdo.advantages import group_centred as group_centred
    from outdo.advantages import group_standardised as group_standardised
    from outdo.advantages import kl_penalty as kl_penalty
    from outdo.advantages import leave_one_out as leave_one_out
    from outdo.advantages import length_weighted as length_weighted
    from outdo.advantages import max_rl as max_rl
    from outdo.advantages import per_token as per_token
    from outdo.advantages import reinforce_pp_baseline as reinforce_pp_baseline
    from outdo.advantages import rejection as rejection
    from outdo.advantages import sign as sign
    from outdo.advantages import without_truncated as without_truncated
    from outdo.coefficients import AdaptiveBonus as AdaptiveBonus
    from outdo.coefficients import AdaptiveCoefficient as AdaptiveCoefficient
    from outdo.critic import Critic as Critic
    from outdo.critic import own_head as own_head
    from outdo.critic import own_model as own_model
    from outdo.data import questions_from as questions_from
    from outdo.engines.base import SamplingParams as SamplingParams
    from outdo.engines.builtin import BuiltinEngine as BuiltinEngine
    from outdo.engines.team import TeamEngine as TeamEngine
    from outdo.environments.base import Rollouts as Rollouts
    from outdo.environments.question import Question as Question
    from outdo.environments.refill import Refill as Refill
    from outdo.errors import Mistakes as Mistakes
    from outdo.errors import OutdoError as OutdoError
    from outdo.evaluation import evaluate as evaluate
    from outdo.finetuning import sft as sft
    from outdo.logprobs import chunked_scores as chunked_scores
    from outdo.logprobs import sequence_logprobs as sequence_logprobs
    from outdo.logprobs import token_entropy as token_entropy
    from outdo.logprobs import token_logprobs as token_logprobs
    from outdo.loop import train as train
    from outdo.metrics import step_metrics as step_metrics
    from outdo.models import Models as Models
    from outdo.models import load_reference as load_reference
    from outdo.needs import Needs as Needs
    from outdo.needs import needing as needing
    from outdo.objectives.conventions import like as like
    from outdo.objectives.objective import Formula as Formula
    from outdo.objectives.objective import Objective as Objective
    from outdo.objectives.presets import bnpo as bnpo
    from outdo.objectives.presets import cispo as cispo
    from outdo.objectives.presets import clip_cov as clip_cov
    from outdo.objectives.presets import dapo as dapo
    from outdo.objectives.presets import dppo_kl as dppo_kl
    from outdo.objectives.presets import dppo_tv as dppo_tv
    from outdo.objectives.presets import dr_grpo as dr_grpo
    from outdo.objectives.presets import dro as dro
    from outdo.objectives.presets import gmpo as gmpo
    from outdo.objectives.presets import grpo as grpo
    from outdo.objectives.presets import grpo_clip as grpo_clip
    from outdo.objectives.presets import gspo as gspo
    from outdo.objectives.presets import gspo_token as gspo_token
    from outdo.objectives.presets import kl_cov as kl_cov
    from outdo.objectives.presets import likelihood as likelihood
    from outdo.objectives.presets import luspo as luspo
    from outdo.objectives.presets import opo as opo
    from outdo.objectives.presets import ppo as ppo
    from outdo.objectives.presets import reinforce as reinforce
    from outdo.objectives.presets import rloo as rloo
    from outdo.objectives.presets import rloo_clip as rloo_clip
    from outdo.objectives.presets import sapo as sapo
    from outdo.objectives.presets import vespo as vespo
    from outdo.objectives.target import target as target
    from outdo.objectives.tpo import tpo as tpo
    from outdo.optimiser import OptimiserSettings as OptimiserSettings
    from outdo.optimiser import adafactor as adafactor
    from outdo.optimiser import adamw as adamw
    from outdo.optimiser import adamw8bit as adamw8bit
    from outdo.policy import Policy as Policy
    from outdo.policy import Work as Work
    from outdo.processes import Team as Team
    from outdo.prompts import Prompts as Prompts
    from outdo.prompts import tokenise as tokenise
    from outdo.record.foreign import record_step as record_step
    from outdo.record.recorder import Recorder as Recorder
    from outdo.record.trl import TrlRecord as TrlRecord
    from outdo.reward_model import RewardModel as RewardModel
    from outdo.reward_refresh import Refreshed as Refreshed
    from outdo.rewards import load_reward as load_reward
    from outdo.stopping import first_of as first_of
    from outdo.types import Batch as Batch
    from outdo.types import Completion as Completion
    from outdo.types import FinishReason as FinishReason
    from outdo.types import Group as Group
    from outdo.types import Prompt as Prompt
    from outdo.types import Request as Request
    from outdo.types import Rollout as Rollout
    from outdo.types import Step as Step
    from outdo.types import Stream as Stream
    from outdo.types import Terms as Terms
    from outdo.types import TokenScores as TokenScores
    from outdo.types import Totals as Totals
    from outdo.types import Update as Update

__version__ = "0.1.0"

HOME = {  # public name: the room it lives in
    "AdaptiveBonus": "outdo.coefficients",
    "AdaptiveCoefficient": "outdo.coefficients",
    "Batch": "outdo.types",
    "BuiltinEngine": "outdo.engines.builtin",
    "Completion": "outdo.types",
    "Critic": "outdo.critic",
    "FinishReason": "outdo.types",
    "Formula": "outdo.objectives.objective",
    "Group": "outdo.types",
    "Mistakes": "outdo.errors",
    "Models": "outdo.models",
    "Needs": "outdo.needs",
    "Objective": "outdo.objectives.objective",
    "OptimiserSettings": "outdo.optimiser",
    "OutdoError": "outdo.errors",
    "Policy": "outdo.policy",
    "Prompt": "outdo.types",
    "Prompts": "outdo.prompts",
    "Question": "outdo.environments.question",
    "Recorder": "outdo.record.recorder",
    "Refill": "outdo.environments.refill",
    "Refreshed": "outdo.reward_refresh",
    "Request": "outdo.types",
    "RewardModel": "outdo.reward_model",
    "Rollout": "outdo.types",
    "Rollouts": "outdo.environments.base",
    "SamplingParams": "outdo.engines.base",
    "Step": "outdo.types",
    "Stream": "outdo.types",
    "Team": "outdo.processes",
    "TeamEngine": "outdo.engines.team",
    "Terms": "outdo.types",
    "TokenScores": "outdo.types",
    "Totals": "outdo.types",
    "TrlRecord": "outdo.record.trl",
    "Update": "outdo.types",
    "Work": "outdo.policy",
    "adafactor": "outdo.optimiser",
    "adamw": "outdo.optimiser",
    "adamw8bit": "outdo.optimiser",
    "batch_standardised": "outdo.advantages",
    "best_of_group": "outdo.advantages",
    "bnpo": "outdo.objectives.presets",
    "chain": "outdo.advantages",
    "chunked_scores": "outdo.logprobs",
    "cispo": "outdo.objectives.presets",
    "clip_cov": "outdo.objectives.presets",
    "dapo": "outdo.objectives.presets",
    "dppo_kl": "outdo.objectives.presets",
    "dppo_tv": "outdo.objectives.presets",
    "dr_grpo": "outdo.objectives.presets",
    "dro": "outdo.objectives.presets",
    "evaluate": "outdo.evaluation",
    "first_of": "outdo.stopping",
    "gae": "outdo.advantages",
    "gdpo": "outdo.advantages",
    "gmpo": "outdo.objectives.presets",
    "group_centred": "outdo.advantages",
    "group_standardised": "outdo.advantages",
    "grpo": "outdo.objectives.presets",
    "grpo_clip": "outdo.objectives.presets",
    "gspo": "outdo.objectives.presets",
    "gspo_token": "outdo.objectives.presets",
    "kl_cov": "outdo.objectives.presets",
    "kl_penalty": "outdo.advantages",
    "leave_one_out": "outdo.advantages",
    "length_weighted": "outdo.advantages",
    "like": "outdo.objectives.conventions",
    "likelihood": "outdo.objectives.presets",
    "load_reference": "outdo.models",
    "load_reward": "outdo.rewards",
    "luspo": "outdo.objectives.presets",
    "max_rl": "outdo.advantages",
    "needing": "outdo.needs",
    "opo": "outdo.objectives.presets",
    "own_head": "outdo.critic",
    "own_model": "outdo.critic",
    "per_token": "outdo.advantages",
    "ppo": "outdo.objectives.presets",
    "questions_from": "outdo.data",
    "record_step": "outdo.record.foreign",
    "reinforce": "outdo.objectives.presets",
    "reinforce_pp_baseline": "outdo.advantages",
    "rejection": "outdo.advantages",
    "rloo": "outdo.objectives.presets",
    "rloo_clip": "outdo.objectives.presets",
    "sapo": "outdo.objectives.presets",
    "sequence_logprobs": "outdo.logprobs",
    "sft": "outdo.finetuning",
    "sign": "outdo.advantages",
    "step_metrics": "outdo.metrics",
    "target": "outdo.objectives.target",
    "token_entropy": "outdo.logprobs",
    "token_logprobs": "outdo.logprobs",
    "tokenise": "outdo.prompts",
    "tpo": "outdo.objectives.tpo",
    "train": "outdo.loop",
    "vespo": "outdo.objectives.presets",
    "without_truncated": "outdo.advantages",
}

__all__ = [*HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'outdo' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOME})
