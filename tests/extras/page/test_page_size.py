"""A page is small enough to be mailed, whatever the run. `benchmarks/page.py` measures larger runs, and the speed."""

from pathlib import Path

import pytest
from run_folders import write_long_run, write_wide_run

from outdo.extras.page.collect import View, collect_run

MEGABYTE = 1_000_000


@pytest.mark.parametrize("write", [write_wide_run, write_long_run])
def test_the_page_of_a_usual_run_is_small(tmp_path: Path, page_of, write):
    assert page_of(write(tmp_path / "run")).stat().st_size < 1.7 * MEGABYTE


def test_curves_take_a_limited_share_of_a_page(tmp_path: Path):
    folder = write_long_run(tmp_path / "run")
    whole = collect_run(folder)
    small = collect_run(folder, View(total=1 * MEGABYTE))
    points = len(whole["metrics"]["steps"]), len(small["metrics"]["steps"])
    assert points[0] == 1001
    assert 100 <= points[1] < 500
