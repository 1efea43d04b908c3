"""The data types of outdo: `rollouts` has what is sampled, `batch` its tensors, `step` what training makes of them.

Shapes: P prompts, G group size, B sequences, T padded length. See `Batch` for the tensors.
"""

from outdo.types.batch import Batch, Totals
from outdo.types.rollouts import Completion, FinishReason, Group, Prompt, Request, Rollout, Sampled
from outdo.types.step import Step, Stop, Terms, TokenScores, Update

__all__ = [
    "Batch",
    "Completion",
    "FinishReason",
    "Group",
    "Prompt",
    "Request",
    "Rollout",
    "Sampled",
    "Step",
    "Stop",
    "Terms",
    "TokenScores",
    "Totals",
    "Update",
]
