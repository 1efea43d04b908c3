"""How the starts of a run went: what a resume changed that decides its bits, and the error that ended the last one."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from outdo.extras.doctor.series import Finding
from outdo.run.checkpoints.run_state import RunState

DECIDE_BITS = ("threads", "device", "hardware", "machine", "torch", "transformers", "python")
"""What `history.jsonl` has of each start that decides the last bits of what is computed."""


def changed_bits(history: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Report each resume by which the run is no longer bit for bit what it would have been."""
    for before, now in pairwise(history):
        changed = [
            f"{name} {before[name]} before, {now[name]} then"
            for name in DECIDE_BITS
            if name in before and name in now and before[name] != now[name]
        ]
        after = now.get("after_step")
        if changed and isinstance(after, int):
            first = after + 1
            yield Finding(
                first=first,
                last=first,
                level="note",
                text=f"the run was resumed with other {', '.join(changed)}.",
                advice="From here on it can differ in its last bits from a run without this.",
                metric="step",
                rule="changed_bits",
            )


def failed(state: RunState) -> Iterator[Finding]:
    """Report the error that ended a run, unless it was resumed since."""
    if state.error is not None:
        yield Finding(
            first=state.step,
            last=state.step,
            level="warning",
            text=f"the run failed after this step: {' '.join(state.error.split()).rstrip('.')}.",
            advice="`outdo resume` continues the run when the cause is removed.",
            metric="step",
            rule="failed",
        )
