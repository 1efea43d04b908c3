"""The implementations that are compared. Each runs in its own process; nothing here loads torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.suite.cases import Kind

Part = Literal["step", "sampling", "machine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One implementation of the work of a case."""

    name: str
    about: str
    run: str  # "package.module:function", called in its own process
    part: Part = "step"  # "sampling": it does nothing else
    kind: Kind = "step"  # of the cases it can do
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""  # a package of an extra

    def can_do(self, kind: Kind) -> bool:
        """Return whether it can do a case of this kind."""
        return kind == self.kind or (kind == "sampling" and self.part == "sampling")


IMPLEMENTATIONS: Mapping[str, Implementation] = {
    each.name: each
    for each in (
        Implementation(
            name="outdo",
            about="a step as `outdo train` makes it: of a small model, in one process per thread",
            run="benchmarks.suite.outdo_side:step",
            options={"processes": True},
        ),
        Implementation(name="outdo-threads", about="the same, in one process", run="benchmarks.suite.outdo_side:step"),
        Implementation(
            name="outdo-record",
            about="outdo-threads, recording what is trained",
            run="benchmarks.suite.outdo_side:step",
            options={"record": True},
        ),
        Implementation(
            name="trl",
            about="TRL's GRPOTrainer with its default settings",
            run="benchmarks.suite.trl_side:step",
            needs="trl",
        ),
        Implementation(
            name="trl-tuned",
            about="TRL in float32, the whole batch at once, without gradient checkpointing and without logs",
            run="benchmarks.suite.trl_side:step",
            options={"tuned": True},
            needs="trl",
        ),
        *(
            Implementation(
                name=f"trl-micro-{answers}",
                about=f"trl-tuned, scored and trained {answers} answers at a time",
                run="benchmarks.suite.trl_side:step",
                options={"tuned": True, "micro_batch": answers},
                needs="trl",
            )
            for answers in (8, 16)
        ),
        Implementation(
            name="trl-processes",
            about="the same in one process per thread, data-parallel over gloo",
            run="benchmarks.suite.trl_side:step",
            options={"tuned": True, "processes": True},
            needs="trl",
        ),
        Implementation(
            name="trl-static",
            about="trl-tuned, sampling with the static cache",
            run="benchmarks.suite.trl_side:step",
            options={"tuned": True, "cache_implementation": "static"},
            needs="trl",
        ),
        Implementation(
            name="generate",
            about="transformers' generate, its usual cache",
            run="benchmarks.suite.transformers_side:generate",
            part="sampling",
        ),
        Implementation(
            name="static",
            about="generate with the static cache",
            run="benchmarks.suite.transformers_side:generate",
            part="sampling",
            options={"cache_implementation": "static"},
        ),
        Implementation(
            name="continuous",
            about="transformers' continuous batching with its paged cache",
            run="benchmarks.suite.transformers_side:continuous",
            part="sampling",
        ),
        Implementation(
            name="outdo-sampling",
            about="the sampling of outdo's step",
            run="benchmarks.suite.outdo_side:sampling",
            part="sampling",
            kind="sampling",
        ),
        Implementation(
            name="vllm",
            about="vLLM in the environment of `make vllm`, or of the interpreter that OUTDO_VLLM names",
            run="benchmarks.suite.outdo_side:sampling",
            part="sampling",
            kind="sampling",
            options={"vllm": True},
        ),
        Implementation(
            name="outdo-scores",
            about="outdo's log-probabilities and entropies, in chunks",
            run="benchmarks.suite.scores:chunked",
            kind="scores",
        ),
        Implementation(
            name="plain-scores",
            about="log-softmax over all logits at once",
            run="benchmarks.suite.scores:plain",
            kind="scores",
        ),
        Implementation(
            name="counts",
            about="outdo's operator calls and memory, in one process",
            run="benchmarks.suite.counts:count",
            kind="counts",
        ),
    )
}

MACHINE = Implementation(
    name="machine",
    about="matrix products and memory copies, measured between the others",
    run="benchmarks.suite.speed:measure",
    part="machine",
)
OWN: Mapping[Kind, str] = {"step": "outdo", "sampling": "outdo-sampling", "scores": "outdo-scores", "counts": "counts"}
"""Which implementation is outdo, by the kind of case."""
USUAL: Mapping[Kind, tuple[str, ...]] = {
    "step": ("trl-tuned", "generate"),
    "sampling": ("generate",),
    "scores": ("plain-scores",),
    "counts": (),
}
"""The implementations that outdo is compared with if none is named."""
