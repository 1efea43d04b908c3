"""Who takes part. Each runs in a process of its own, which loads what it needs; nothing here loads torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.suite.cases import Kind

Part = Literal["step", "sampling", "machine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way to do the work of a case."""

    name: str
    about: str
    run: str  # "package.module:function", called in a process of its own
    part: Part = "step"  # "sampling": does nothing but that
    kind: Kind = "step"  # of the cases it can do
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""  # a package of an extra


CONTENDERS: Mapping[str, Contender] = {
    each.name: each
    for each in (
        Contender(name="outdo", about="a step as `outdo train` makes it", run="benchmarks.suite.ours:step"),
        Contender(
            name="outdo-threads",
            about="the same in one process with all threads",
            run="benchmarks.suite.ours:step",
            options={"threads": True},
        ),
        Contender(
            name="outdo-record",
            about="the same with the record of what was trained",
            run="benchmarks.suite.ours:step",
            options={"record": True},
        ),
        Contender(
            name="trl",
            about="TRL's GRPOTrainer with its default settings",
            run="benchmarks.suite.trl_side:step",
            needs="trl",
        ),
        Contender(
            name="trl-tuned",
            about="TRL in float32, the whole batch at once, without gradient checkpointing and without logs",
            run="benchmarks.suite.trl_side:step",
            options={"tuned": True},
            needs="trl",
        ),
        Contender(
            name="trl-processes",
            about="the same in one process per thread, data-parallel over gloo",
            run="benchmarks.suite.trl_side:step",
            options={"tuned": True, "processes": True},
            needs="trl",
        ),
        Contender(
            name="trl-static",
            about="trl-tuned, sampling with the static cache",
            run="benchmarks.suite.trl_side:step",
            options={"tuned": True, "cache_implementation": "static"},
            needs="trl",
        ),
        Contender(
            name="generate",
            about="transformers' generate, its usual cache",
            run="benchmarks.suite.transformers_side:generate",
            part="sampling",
        ),
        Contender(
            name="static",
            about="generate with the static cache",
            run="benchmarks.suite.transformers_side:generate",
            part="sampling",
            options={"cache_implementation": "static"},
        ),
        Contender(
            name="continuous",
            about="transformers' continuous batching with its paged cache",
            run="benchmarks.suite.transformers_side:continuous",
            part="sampling",
        ),
        Contender(
            name="outdo-scores",
            about="outdo's log-probabilities and entropies, in chunks",
            run="benchmarks.suite.scores:chunked",
            kind="scores",
        ),
        Contender(
            name="plain-scores",
            about="log-softmax over all logits at once",
            run="benchmarks.suite.scores:plain",
            kind="scores",
        ),
        Contender(
            name="counts",
            about="outdo's operator calls and memory, in one process",
            run="benchmarks.suite.counts:count",
            kind="counts",
            options={"threads": True},
        ),
    )
}

MACHINE = Contender(
    name="machine",
    about="matrix multiply and memory copy, measured beside the others",
    run="benchmarks.suite.speed:measure",
    part="machine",
)
OWN: Mapping[Kind, str] = {"step": "outdo", "scores": "outdo-scores", "counts": "counts"}
"""Which of them is outdo."""
USUAL: Mapping[Kind, tuple[str, ...]] = {"step": ("trl-tuned", "generate"), "scores": ("plain-scores",), "counts": ()}
"""Whom it is compared with when nobody is named."""
