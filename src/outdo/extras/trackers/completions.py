"""The completions table of a step, from the step itself or from its record on disk."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outdo.extras.record import parquet
from outdo.types import Group

Row = dict[str, Any]


def completions_of(groups: Sequence[Group], most: int) -> list[Row]:
    """Return the first `most` completions of a step, in the order of its groups. An unscored one has no reward."""
    rollouts = ((group.prompt, each) for group in groups for each in group.rollouts)
    return _with_columns_of_rewards(
        [
            {
                "question": prompt.id,
                "prompt": prompt.text if isinstance(prompt.text, str) else json.dumps(prompt.text, ensure_ascii=False),
                "completion": each.text,
                "reward": each.reward if each.scored else None,
                "right": each.right,
                "status": str(each.status),
                "parts": dict(each.reward_parts),
            }
            for _, (prompt, each) in zip(range(most), rollouts, strict=False)
        ]
    )


def recorded_completions(folder: Path, step: int, most: int) -> list[Row]:
    """Return the same from the record of a step in the run folder; nothing if the step has no record.

    The prompt is then the text that the model has read, with its chat template.
    """
    if not most or not parquet.path_of(folder, step).exists():
        return []
    rows = parquet.read(folder, step).slice(0, most).to_pylist()
    names = {"prompt_id": "question", "prompt": "prompt", "text": "completion"}
    return _with_columns_of_rewards(
        [
            {new: row[old] for old, new in names.items()}
            | {name: row[name] for name in ("reward", "right", "status")}
            | {"parts": row.get("reward_parts") or {}}
            for row in rows
        ]
    )


def _with_columns_of_rewards(rows: list[Row]) -> list[Row]:
    """Replace `parts` in each row by a column for each reward, where there are several."""
    names = sorted({name for row in rows for name in row["parts"]})
    for row in rows:
        parts = row.pop("parts")
        row |= {f"rewards/{name}": parts.get(name) for name in names} if len(names) > 1 else {}
    return rows
