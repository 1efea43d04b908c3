"""What differs between the tasks of the quickstart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outdo.cli.quickstart import settings

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The data of a task, as rows of files."""

    demonstrations: Sequence[Row]  # examples by a teacher who makes mistakes, to fine-tune on
    questions: Sequence[Row]  # to train on by GRPO
    held_out: Sequence[Row]  # to evaluate on


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task: its data, the tokens of its model, and the settings of its recipe."""

    teacher: str  # what the teacher does wrong, for the user
    data: Callable[[int], Data]  # by the random seed
    tokens: Sequence[str]
    is_chat: bool = False  # the model has a chat template
    warm_start: int = settings.WARM_START_STEPS  # steps of fine-tuning
    workers: int = settings.WORKERS  # processes; one is enough for a task whose episodes are short
    recipe: str = ""  # lines of the recipe: what is rewarded, and the environment
    train: str = ""  # further lines of its table `train`
    steps: int = 80
    prompts: int = 32
    max_tokens: int = 48
    lr: str = "1e-4"
    rows: int = 512  # held-out questions
    samples: int = 4  # answers to each of them
