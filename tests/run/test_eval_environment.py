"""Who says which held-out answers are right, where the rewards of a run are learnt."""

import json
from pathlib import Path
from typing import Any

from run_cases import outdo_

JUDGED = ("steps=1", "eval.rows=4", "eval.samples=1")


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def test_held_out_answers_are_scored_by_the_labels_if_every_reward_is_learnt(family):
    labelled = 'rewards={name = "reward_model", path = "judge", labels = "sure.py:always", every = 1}'
    (family / "sure.py").write_text("def always(completion):\n    return True\n")
    outdo_(family, "train", "recipe.toml", "run=./labelled", *JUDGED, labelled)
    assert summary_of(family / "labelled")["accuracy_after"] == 1.0


def test_with_a_reward_model_alone_the_mean_score_is_measured_and_nothing_is_called_right(family):
    outdo_(family, "train", "recipe.toml", "run=./scored", *JUDGED, 'rewards={name = "reward_model", path = "judge"}')
    notes = (family / "scored/start.txt").read_text()
    assert "right is not defined: mean rewards are shown instead" in notes
    summary = summary_of(family / "scored")
    assert summary["accuracy_after"] is None
    assert isinstance(summary["reward_after"], float)
