"""Where training happened: contexts, their leverage, and how their probabilities changed, against a plain loop."""

import math
from pathlib import Path

import pyarrow
import pytest
from run_folders import write_small_run

from outdo.extras.page.leverage import where_training_happened
from outdo.extras.record import parquet as files


def by_hand(folder: Path, steps: range) -> dict[tuple, list[tuple]]:
    """Every trained token of the run by its context: step, leverage, the part of it that pushed up, π_old."""
    tokens: dict[tuple, list[tuple]] = {}
    for step in steps:
        for row in files.read(folder, step).to_pylist():
            for i, token in enumerate(row["token_ids"]):
                if not row["loss_mask"][i]:
                    continue
                push, old = row["net_push"][i], row["old_logprobs"][i]
                leverage = row["share"][i] * abs(push) * -math.expm1(old)
                context = (*[None, None, *row["token_ids"]][i : i + 2], token)
                upward = leverage if push > 0 else 0.0
                tokens.setdefault(context, []).append((step, leverage, upward, math.exp(old)))
    return tokens


def test_the_contexts_are_those_of_a_plain_loop(small_run: Path):
    found = where_training_happened(small_run, range(1, 7))
    tokens = by_hand(small_run, range(1, 7))
    total = sum(each[1] for context in tokens.values() for each in context)
    shares = sorted((sum(each[1] for each in context) / total for context in tokens.values()), reverse=True)
    assert found is not None
    assert found["steps"] == 6
    assert found["tokens"] == sum(map(len, tokens.values()))
    assert [each["leverage"] for each in found["contexts"]] == pytest.approx(shares[:8], rel=1e-3)
    best = max(tokens.values(), key=lambda context: sum(each[1] for each in context))
    first = found["contexts"][0]
    assert first["tokens"] == len(best)
    assert first["steps"] == len({each[0] for each in best})
    assert first["up"] == (sum(each[2] for each in best) > sum(each[1] for each in best) / 2)
    for name, step in (("first", min), ("last", max)):
        own = [each[3] for each in best if each[0] == step(each[0] for each in best)]
        assert first[name] == pytest.approx(sum(own) / len(own), abs=2e-5)


def test_a_damaged_step_is_left_out_and_a_run_without_pushes_has_no_leverage(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    files.path_of(folder, 3).write_bytes(b"damaged")
    found = where_training_happened(folder, range(1, 7))
    assert found is not None
    assert found["steps"] == 5
    table = files.read(folder, 1)
    zeros = [[0.0] * len(ids) for ids in table["token_ids"].to_pylist()]
    place = table.schema.get_field_index("net_push")
    table = table.set_column(place, "net_push", pyarrow.array(zeros, table["net_push"].type))
    files.write(folder, 1, table)
    assert where_training_happened(folder, [1]) is None
    assert where_training_happened(folder, []) is None
