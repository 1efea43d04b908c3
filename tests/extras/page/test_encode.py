"""The tokens of a step as bytes: what is unpacked is what was recorded, to four digits, and it is small."""

from pathlib import Path

import numpy
import pyarrow
import pytest
from encoded_pages import unpack
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from run_folders import write_small_run

from outdo.extras.page.encode import COARSE, FLOATS, STORED_AS_DIFFERENCE, pack, rounded
from outdo.extras.record import parquet

ERROR = 6.2e-5
LISTS = pyarrow.list_(pyarrow.float32())


def record(**columns) -> pyarrow.Table:
    """Two rollouts of one group, of three tokens and two; `columns` replace or add."""
    rows = {
        "group": [7, 7],
        "rollout": [0, 1],
        "token_ids": [[5, 6, 5], [6, 9]],
        "pieces": [["a", "é", "a"], ["é", "b"]],
    }
    return pyarrow.table({**rows, **columns})


@settings(deadline=None)
@given(arrays(numpy.float32, st.integers(0, 50), elements=st.floats(width=32, allow_subnormal=False)))
def test_rounding_keeps_four_digits_and_non_finite_values(values):
    packed = rounded(values)
    assert (numpy.isnan(packed) == numpy.isnan(values)).all()
    known = ~numpy.isnan(values)
    ordinary = known & (numpy.abs(values) < 3e38)
    assert (numpy.abs(packed[ordinary] - values[ordinary]) <= ERROR * numpy.abs(values[ordinary])).all()
    assert (packed[numpy.isinf(values)] == values[numpy.isinf(values)]).all()
    assert (packed.view(numpy.uint32)[known] & 0x3FF == 0).all()  # else gzip has nothing to gain


def test_a_real_record_is_decoded_unchanged(tmp_path: Path):
    table = parquet.read(write_small_run(tmp_path / "run"), 3)
    header, columns = unpack(pack(table))
    for name, column in FLOATS.items():
        if column in table.column_names:
            rows = zip(table[column].to_pylist(), table["token_ids"].to_pylist(), strict=True)
            flat = [x for own, ids in rows for x in own or [None] * len(ids)]
            expected = numpy.array([numpy.nan if x is None else x for x in flat], numpy.float32)
            beside = (
                numpy.abs(columns["old"]) + numpy.abs(expected - columns["old"])
                if name in STORED_AS_DIFFERENCE
                else 0.0
            )
            assert (numpy.isnan(columns[name]) == numpy.isnan(expected)).all(), name
            known = ~numpy.isnan(expected)
            allowed = (8 * ERROR if name in COARSE else ERROR) * numpy.maximum(numpy.abs(expected), 1.01 * beside)
            assert (numpy.abs(columns[name] - expected)[known] <= allowed[known]).all(), name
    assert [header["clip"][int(i)] for i in columns["clip"]] == [w for row in table["clip"].to_pylist() for w in row]
    assert columns["trained"].astype(bool).tolist() == [x for row in table["loss_mask"].to_pylist() for x in row]
    assert [row["reward"] for row in header["rows"]] == table["reward"].to_pylist()
    assert [row["parts"] for row in header["rows"]] == table["reward_parts"].to_pylist()
    assert [header["groups"][row["group"]]["number"] for row in header["rows"]] == table["group"].to_pylist()
    spelt = ["".join(header["vocabulary"][i][1] for i in group["prompt"]) for group in header["groups"]]
    numbers = table["group"].to_pylist()
    assert spelt == [table["prompt"][numbers.index(group["number"])].as_py() for group in header["groups"]]


def split(values) -> pyarrow.Array:
    return pyarrow.array([values[:3], values[3:]], LISTS)


def test_a_small_difference_keeps_its_digits():
    old = numpy.array([-0.5, -1.5, -2.5, -0.1, -9.0], numpy.float32)
    for apart in (1e-2, 1e-4, 3.3e-6):
        new = (old + numpy.float32(apart)).astype(numpy.float32)
        header, columns = unpack(pack(record(old_logprobs=split(old), new_logprobs=split(new))))
        assert header["columns"]["new"]["beside"] == "old"
        moved = columns["new"].astype(float) - columns["old"]
        numpy.testing.assert_allclose(moved, new.astype(float) - old, rtol=1e-4, atol=1e-6)  # of float32 itself


def test_bytes_are_stored_only_if_they_differ_from_the_piece():
    octets = [[b"a", "é".encode(), b"a"], [b"\xff", b"b"]]
    header, _ = unpack(pack(record(token_bytes=octets)))
    assert [6, "é", None] in header["vocabulary"]
    assert [6, "é", "ff"] in header["vocabulary"]


def test_a_token_of_ten_megabytes_is_cut_and_shows_its_length():
    content = pack(record(pieces=[["a", "é", "a"], ["é", "x" * 10_485_760]]))
    header, _ = unpack(content)
    assert header["vocabulary"][-1][1] == "x" * 200 + "…(10,485,760 characters)"
    assert len(content) < 5_000


@pytest.mark.parametrize("column", ["entropy", "clip"])
def test_inconsistent_columns_are_an_error(column):
    values = pyarrow.array([["free"], []]) if column == "clip" else pyarrow.array([[1.0], None], LISTS)
    with pytest.raises(ValueError, match=f"{column} does not have one entry per token"):
        pack(record(**{column: values}))
