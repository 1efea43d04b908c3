"""How checkpoints are named: a folder `step_000040` for each, read without torch."""

import re
from pathlib import Path


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of a checkpoint."""
    return f"step_{step:06d}"


def saved_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint in `folder`, whole or not, newest first."""
    named = [re.fullmatch(r"step_(\d{6,})", path.name, re.ASCII) for path in folder.glob("step_*")]
    steps = {int(match[1]) for match in named if match and match[0] == checkpoint_name(int(match[1]))}
    return sorted(steps, reverse=True)
