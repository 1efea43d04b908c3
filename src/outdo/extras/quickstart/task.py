"""What differs between the tasks of the quickstart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """The data of a task, as rows of files."""

    demonstrations: Sequence[Row] = ()  # examples by a teacher who makes mistakes, to fine-tune a small model on
    questions: Sequence[Row]  # to train on by GRPO
    held_out: Sequence[Row]  # to evaluate on


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModel:
    """A model that is built here, and fine-tuned on the examples of a teacher before GRPO."""

    teacher: str  # what the teacher does wrong, for the user
    tokens: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task: its model, its data, and the settings of its recipe."""

    data: Callable[[int], TaskData]  # by the random seed
    small: SmallModel | None = None  # None: SmolLM2-135M-Instruct, as it is
    reward: Path | None = (
        None  # a file that is copied into the folder of the task, as `reward.py`, for the user to change
    )
    recipe: str = ""  # lines of the recipe: what is rewarded, and the environment; {reward} is the copy
    sampling: str = ""  # further lines of its table `sampling`
    train: str = ""  # further lines of its table `train`
    evaluation: str = ""  # further lines of its table `eval`
    replicas: int = 1  # processes of the run, which share the threads
    steps: int = 80
    prompts: int = 32
    max_tokens: int = 48
    lr: str = "1e-4"
    schedule: str = '{name = "linear", warmup = 10}'
    rows: int = 512  # held-out questions
    samples: int = 4  # answers to each of them
    further: Sequence[str] = ()  # commands to try after the run, besides those for every task; with {run} and {reward}
