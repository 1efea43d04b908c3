"""The trainers of TRL: what each has for settings, and which one a configuration is of."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from outdo.extras.convert.account import table_of

GRPO = "GRPOTrainer"
WITH_TEACHERS = ("DistillationTrainer", "GKDTrainer", "SDFTTrainer", "SDPOTrainer", "IWOPDTrainer")
SIGNS = ("teacher", "distillation", "iw_opd", "lmbda")
"""Parts of the names of settings that no trainer without a teacher has."""

READ_HERE = "outdo reads the answers with the teacher itself, as DistillationTrainer does"
NOT_HERE: Mapping[str, str] = {
    "GOLDTrainer": "it compares models with different vocabularies, by the texts of their tokens (GOLD) or their "
    "sorted probabilities (ULD); a teacher of outdo has the policy's vocabulary, as that of GKDTrainer has",
    "ServerDistillationTrainer": f"its teacher is a server, which tells a few probabilities of a token; {READ_HERE}",
    "AsyncDistillationTrainer": f"its teachers are servers, which tell a few probabilities of a token; {READ_HERE}",
}
"""Trainers of TRL with a teacher whose configurations become no recipe, and why."""

CALLED = {"grpo": GRPO, "distillation": "DistillationTrainer"}
"""The words after `trl` on a command line, and the trainers that they start."""


@cache
def table_of_trainer(trainer: str) -> Mapping[str, Any]:
    """Return the settings of a trainer as `account.table_of` returns those of a library."""
    base = table_of("trl")
    if trainer not in WITH_TEACHERS:
        return base
    teachers = table_of("trl_teachers")
    own = teachers[trainer]
    absent = {*teachers["without"].split(), *own["without"].split()}
    shared = {name: value for name, value in base["defaults"].items() if name not in absent}
    others = [name for name in base["others"].split() if name not in absent and name not in own["defaults"]]
    return {
        **base,
        "numbers": f"{base['numbers']} {teachers['numbers']}",
        "others": " ".join([*others, *own["others"].split()]),
        "defaults": {**shared, **own["defaults"], **own.get("fixed", {})},
        "usual": {**base["usual"], **own.get("usual", {})},
        "earlier": own.get("earlier", ()),
    }


def trainer_of(names: Iterable[str]) -> str:
    """Return the trainer that has most of these settings; `GRPOTrainer` where none is about a teacher."""
    written = set(names)
    if not any(sign in name for name in written for sign in SIGNS):
        return GRPO

    def known(trainer: str) -> int:
        table = table_of_trainer(trainer)
        fixed = table_of("trl_teachers")[trainer].get("fixed", {})
        return len(written & {*table["defaults"], *table["others"].split()} - {*fixed})

    return max(WITH_TEACHERS, key=known)
