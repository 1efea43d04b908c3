"""The page of a run with a teacher: colours by δ, and what the card of a token says of the teacher."""

import math
import re
from pathlib import Path

import pyarrow
import pytest
from browser import by_test_id, open_page
from playwright.sync_api import Page, expect
from run_folders import write_run

from outdo.extras.record import parquet


def recorded(folder: Path, *, divergence: bool = True) -> Path:
    """A run whose first two rollouts have a teacher: δ is -0.5 at the first token, 0 at the second, else 0.25."""
    run = write_run(folder, steps=1, groups=1, group_size=3, length=24, even=True)
    table = parquet.read(run, 1)
    old = table["old_logprobs"].to_pylist()
    deltas = [-0.5, 0.0, *[0.25] * 22]
    taught = [[value + delta for value, delta in zip(row, deltas, strict=True)] for row in old[:2]]
    columns = {"teacher_logprobs": [*taught, None], "teacher_divergence": [[0.125] * 24] * 2 + [None]}
    for name, values in columns.items():
        if divergence or name == "teacher_logprobs":
            table = table.append_column(name, pyarrow.array(values, pyarrow.list_(pyarrow.float32())))
    parquet.write(run, 1, table)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("taught") / "run")


def test_tokens_are_coloured_by_how_much_more_likely_the_teacher_finds_them(page: Page, page_of, run: Path):
    open_page(page, page_of(run))
    by_test_id(page, "quantity").select_option("teacher")
    expect(by_test_id(page, "legend")).to_contain_text("teacher finds it less likely")

    def level(row: int, index: int) -> str:
        classes = (by_test_id(page, "token", row=row, index=index).get_attribute("class") or "").split()
        return next((each for each in classes if each[0] in "npr" and each[1:].isdigit()), "")

    less, same, more = (level(0, index) for index in range(3))
    assert (less[0], same, more[0]) == ("n", "", "p")
    assert int(less[1:]) > int(more[1:])
    expect(by_test_id(page, "token", row=2, index=0)).to_have_class(re.compile(r"\bunknown\b"))
    by_test_id(page, "quantity").select_option("teacher_divergence")
    assert level(0, 0).startswith("r")


def test_the_card_says_in_words_what_the_teacher_thinks_of_a_token(page: Page, page_of, run: Path):
    old = parquet.read(run, 1)["old_logprobs"].to_pylist()[0]
    open_page(page, page_of(run))
    said = by_test_id(page, "of-teacher")
    by_test_id(page, "token", row=0, index=0).hover()
    expect(said).to_have_text(
        f"The teacher finds this token less likely than the policy did: {percent(old[0] - 0.5)} against "
        f"{percent(old[0])}, δ = −0.5 nats. Over all tokens the two differ by 0.125 nats here."
    )
    rows = by_test_id(page, "card").locator("tr")
    expect(rows.filter(has_text="δ: teacher − policy")).to_contain_text("−0.5000")
    expect(rows.filter(has_text="divergence")).to_contain_text("0.1250")
    by_test_id(page, "token", row=0, index=1).hover()
    expect(said).to_contain_text("as likely as the policy did")
    by_test_id(page, "token", row=0, index=2).hover()
    expect(said).to_contain_text("more likely than the policy did")
    by_test_id(page, "token", row=2, index=0).hover()
    expect(by_test_id(page, "card")).to_contain_text("Token 1 of")
    expect(said).to_have_count(0)


def percent(logprob: float) -> str:
    """A probability as the page writes it where it is neither small nor near 1."""
    share = 100 * math.exp(logprob)
    assert 10 < share < 99
    return f"{float(f'{share:.3g}'):g}\u00a0%"


def test_a_run_with_the_sampled_token_alone_is_coloured_by_delta_too(page: Page, page_of, tmp_path: Path):
    open_page(page, page_of(recorded(tmp_path / "run", divergence=False)))
    options = by_test_id(page, "quantity").locator("option")
    titles = options.all_text_contents()
    assert "Teacher: δ" in titles
    assert "Teacher: divergence" not in titles
    by_test_id(page, "token", row=0, index=0).hover()
    expect(by_test_id(page, "of-teacher")).not_to_contain_text("Over all tokens")


def test_a_run_without_a_teacher_says_nothing_of_one(page: Page, small_page: Path):
    open_page(page, small_page)
    assert not [
        title for title in by_test_id(page, "quantity").locator("option").all_text_contents() if "each" in title
    ]
    by_test_id(page, "token").first.hover()
    expect(by_test_id(page, "card")).to_contain_text("Token 1 of")
    expect(by_test_id(page, "card")).not_to_contain_text("teacher")
