"""An episode of several turns shows who wrote which tokens; a single answer shows no speakers."""

from pathlib import Path

import pyarrow
from browser import by_test_id, open_page
from playwright.sync_api import Page, expect
from run_folders import write_run

from outdo.observability.record import parquet


def test_each_speaker_is_named_where_its_tokens_begin(page: Page, page_of, tmp_path: Path):
    run = write_run(tmp_path / "run", steps=1, groups=1, group_size=2, length=24, even=True)
    table = parquet.read(run, 1)
    place = table.column_names.index("clip")
    words = [["free"] * 24 for _ in range(2)]
    words[0][5:9] = ["environment"] * 4
    table = table.set_column(place, "clip", pyarrow.array(words, pyarrow.list_(pyarrow.string())))
    parquet.write(run, 1, table)
    open_page(page, page_of(run))
    speakers = {0: "policy, turn 1", 5: "environment", 9: "policy, turn 2"}
    for index in range(12):
        token = by_test_id(page, "token", row=0, index=index)
        if index in speakers:
            expect(token).to_have_attribute("data-speaker", speakers[index])
        else:
            assert token.get_attribute("data-speaker") is None
    assert by_test_id(page, "token", row=1, index=0).get_attribute("data-speaker") is None
