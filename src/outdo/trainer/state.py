"""What a checkpoint of a run holds, and how it is restored."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outdo.storage import checkpoint
from outdo.storage.run_folder import RunFolder
from outdo.trainer.build import Run
from outdo.trainer.display import Display
from outdo.utils.timing import span


@dataclass(slots=True)
class Progress:
    """What a run remembers beside its models, as of its last finished step: saved with every checkpoint."""

    step: int = 0
    prompts: dict[str, Any] = field(default_factory=dict)  # the position in the data
    version: int = 0  # of the policy and the critic
    seconds: float = 0.0  # of training, evaluation left out
    tokens: int = 0  # sampled
    before: dict[str, float] = field(default_factory=dict)  # evaluation before the first step
    after: dict[str, float] = field(default_factory=dict)  # the latest evaluation
    best: dict[str, float] = field(default_factory=dict)  # the best evaluation, with its step


def restore(session: Run, saved: Path, state: Mapping[str, Any], display: Display) -> Progress:
    """Bring the session to where it was when the checkpoint `saved` was made; what the run remembers."""
    session.models.load_state(state["models"])
    for name, part in session.parts().items():
        if name in state["parts"]:
            part.load_state(state["parts"][name])
        else:
            display.say(f"{saved}: says nothing of the {name}, which begins anew; an older outdo wrote it")
    progress = Progress(**state["progress"])
    session.prompts.load_state(progress.prompts)
    return progress


def save(run: RunFolder, session: Run, progress: Progress) -> None:
    state = {
        "models": session.models.state(),
        "parts": {name: part.state() for name, part in session.parts().items()},
        "progress": asdict(progress),
        "fingerprints": dict(session.fingerprints),
    }
    with span("save"):
        checkpoint.save(run.checkpoints, progress.step, session.models.policy.save, state)
        best = progress.best.get("step")
        checkpoint.prune(run.checkpoints, session.recipe.checkpoint.keep, None if best is None else int(best))
