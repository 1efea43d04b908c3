"""outdo improves a language model against its own past self: GRPO and its whole family.

Names are loaded when they are first used, so that `import outdo` needs neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outdo.advantages import group_centred as group_centred
    from outdo.advantages import group_standardised as group_standardised
    from outdo.advantages import per_token as per_token
    from outdo.data import questions_from as questions_from
    from outdo.engines.base import SamplingParams as SamplingParams
    from outdo.engines.builtin import BuiltinEngine as BuiltinEngine
    from outdo.environments.base import Rollouts as Rollouts
    from outdo.environments.question import Question as Question
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
    from outdo.objectives.objective import Formula as Formula
    from outdo.objectives.presets import grpo as grpo
    from outdo.objectives.presets import likelihood as likelihood
    from outdo.optimiser import OptimiserSettings as OptimiserSettings
    from outdo.policy import Policy as Policy
    from outdo.policy import Work as Work
    from outdo.prompts import Prompts as Prompts
    from outdo.prompts import tokenise as tokenise
    from outdo.rewards import load_reward as load_reward
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
    "Batch": "outdo.types",
    "BuiltinEngine": "outdo.engines.builtin",
    "Completion": "outdo.types",
    "FinishReason": "outdo.types",
    "Formula": "outdo.objectives.objective",
    "Group": "outdo.types",
    "Mistakes": "outdo.errors",
    "Models": "outdo.models",
    "OptimiserSettings": "outdo.optimiser",
    "OutdoError": "outdo.errors",
    "Policy": "outdo.policy",
    "Prompt": "outdo.types",
    "Prompts": "outdo.prompts",
    "Question": "outdo.environments.question",
    "Request": "outdo.types",
    "Rollout": "outdo.types",
    "Rollouts": "outdo.environments.base",
    "SamplingParams": "outdo.engines.base",
    "Step": "outdo.types",
    "Stream": "outdo.types",
    "Terms": "outdo.types",
    "TokenScores": "outdo.types",
    "Totals": "outdo.types",
    "Update": "outdo.types",
    "Work": "outdo.policy",
    "chunked_scores": "outdo.logprobs",
    "evaluate": "outdo.evaluation",
    "group_centred": "outdo.advantages",
    "group_standardised": "outdo.advantages",
    "grpo": "outdo.objectives.presets",
    "likelihood": "outdo.objectives.presets",
    "load_reward": "outdo.rewards",
    "per_token": "outdo.advantages",
    "questions_from": "outdo.data",
    "sequence_logprobs": "outdo.logprobs",
    "sft": "outdo.finetuning",
    "step_metrics": "outdo.metrics",
    "token_entropy": "outdo.logprobs",
    "token_logprobs": "outdo.logprobs",
    "tokenise": "outdo.prompts",
    "train": "outdo.loop",
}

__all__ = [*HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'outdo' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOME})
