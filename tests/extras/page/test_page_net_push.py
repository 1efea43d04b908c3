"""Answers that begin alike push one probability together: the page shows their sum, and counts a token once."""

from pathlib import Path

import pyarrow
from browser import by_test_id, open_page
from playwright.sync_api import Page, expect
from run_folders import write_run

from outdo.extras.record import parquet


def test_a_shared_token_is_shown_with_the_net_push_of_its_answers(page: Page, page_of, tmp_path: Path):
    run = write_run(tmp_path / "alike", steps=1, groups=1, group_size=8, length=24)
    table = parquet.read(run, 1)
    pushes, nets = table["policy_push"].to_pylist(), table["net_push"].to_pylist()
    pulls, shares = table["kl_pull"].to_pylist(), table["share"].to_pylist()
    nets[0][0], shares[0][0] = -3 * (pushes[0][0] + pulls[0][0]), 1 / 3
    for name, values in (("net_push", nets), ("share", shares)):
        column = pyarrow.array(values, pyarrow.list_(pyarrow.float32()))
        table = table.set_column(table.column_names.index(name), name, column)
    parquet.write(run, 1, table)
    open_page(page, page_of(run))
    by_test_id(page, "token", row=0, index=0).hover()
    card = by_test_id(page, "card")
    expect(card).to_contain_text("but the push of 2 other rollouts with the same beginning is stronger")
    shown = card.locator("tr[data-name=net] data").get_attribute("value")
    assert abs(float(shown or 0) - nets[0][0]) < 1e-3 * abs(nets[0][0])
