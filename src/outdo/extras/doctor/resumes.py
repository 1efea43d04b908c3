"""What a resume changed that decides the bits of a run, by the run's history."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from outdo.extras.doctor.series import Finding

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
