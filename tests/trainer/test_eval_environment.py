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


def test_without_rules_or_labels_there_is_no_evaluation(family):
    said = outdo_(
        family, "train", "recipe.toml", "run=./scored", *JUDGED, 'rewards={name = "reward_model", path = "judge"}'
    )
    assert "no evaluation: with a reward model alone, no answer counts as right" in said
    assert summary_of(family / "scored")["accuracy_after"] is None
