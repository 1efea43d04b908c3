"""Two to ten runs on a page: the settings that differ first, seeds as a band, the same question's answers together."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import by_test_id, open_page, watched_page
from playwright.sync_api import Browser, Page, expect
from run_folders import write_run, write_small_run
from test_held_out import answers, record

from outdo.extras.page.command import InspectArguments, run_inspect
from outdo.extras.page.runs import MOST_RUNS, collect_runs, seed_groups
from outdo.run.display import Display
from outdo.run.folder.run_folder import read_metrics
from outdo.utils.errors import UserError


def variant(folder: Path, *, seed: int = 0, lr: str = "1e-4", rights: str = "rrww") -> Path:
    """A small run with an evaluation before the first step and one after the last."""
    run = write_small_run(folder, seed=seed)
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("lr = 1e-4", f"lr = {lr}"))
    return record(run, {0: answers("wwww"), 6: answers(rights, text=f"{folder.name} writes")})


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three seeds of one recipe, and a run with another learning rate."""
    folder = tmp_path_factory.mktemp("seeds")
    return [
        *(variant(folder / f"seed-{seed}", seed=seed, rights="r" * (seed + 1) + "w" * (3 - seed)) for seed in range(3)),
        variant(folder / "fast", lr="3e-4", rights="rrrr"),
    ]


# ------------------------------------------------------------------------------------------------------ what differs


def test_the_settings_that_differ_are_named_and_those_that_do_not_are_not(seeds: list[Path]):
    runs = collect_runs(seeds)
    assert [run["differs"] for run in runs] == [
        {"seed": "0", "optim.lr": "0.0001"},
        {"seed": "1", "optim.lr": "0.0001"},
        {"seed": "2", "optim.lr": "0.0001"},
        {"seed": "0", "optim.lr": "0.0003"},
    ]
    assert [run["seeds"] for run in runs] == [0, 0, 0, None]
    assert "differs" not in collect_runs(seeds[:1])[0]


def test_settings_that_are_not_known_are_not_compared(seeds: list[Path], tmp_path: Path):
    recorded = write_small_run(tmp_path / "recorded")
    (recorded / "recipe.toml").unlink()
    assert [run["compared"] for run in collect_runs([recorded, seeds[0]])] == [False, False]
    assert [run["compared"] for run in collect_runs(seeds[:2])] == [True, True]


def test_runs_with_the_same_seed_or_without_a_recipe_are_no_group_of_seeds():
    assert seed_groups([{"seed": "1", "a": "x"}, {"seed": "1", "a": "x"}]) == [None, None]
    assert seed_groups([{}, {}]) == [None, None]
    assert seed_groups([{"seed": "1", "run": "x"}, {"seed": "2", "run": "y"}, {"a": "1"}]) == [None, None, None]
    assert seed_groups([{"seed": str(n % 3), "a": "xy"[n // 3]} for n in range(6)]) == [0, 0, 0, 1, 1, 1]


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path):
    folders = [write_small_run(tmp_path / name / "run-1") for name in ("a", "b")]
    assert [run["name"] for run in collect_runs(folders)] == ["a/run-1", "b/run-1"]


def test_at_most_ten_runs_are_compared(tmp_path: Path):
    folders = [
        write_run(tmp_path / f"run-{n}", steps=1, groups=1, group_size=2, length=4) for n in range(MOST_RUNS + 1)
    ]
    with pytest.raises(UserError, match="11 runs: a page holds one to 10"):
        run_inspect(folders, InspectArguments(out=tmp_path / "page.html"), Display())


# ---------------------------------------------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def opened(browser: Browser, page_of: Callable[..., Path], seeds: list[Path]) -> Iterator[Page]:
    with watched_page(browser) as page:
        open_page(page, page_of(*seeds))
        yield page


def test_the_differences_are_on_the_first_screen_above_the_results(opened: Page):
    expect(by_test_id(opened, "differences")).to_be_in_viewport()
    expect(by_test_id(opened, "differences")).to_have_text(
        "The runs differ in seed (0, 1, 2); optim.lr (0.0001, 0.0003)."
    )
    rows = by_test_id(opened, "run-row")
    expect(rows).to_have_count(4)
    expect(rows.nth(3)).to_contain_text("0.0003")
    expect(rows.nth(3)).to_contain_text("finished after 6 steps")


def test_seeds_are_one_line_with_a_band_or_lines_of_their_own(opened: Page, seeds: list[Path]):
    lines = by_test_id(opened, "lines").locator("li")
    expect(lines).to_have_text(["optim.lr = 0.0001, 3 seeds (0, 1, 2)", "fast"])
    reward = by_test_id(opened, "curve", metric="reward")
    reward.locator(".u-over").hover()
    expect(reward.locator("output")).to_contain_text(" at ")
    text = reward.locator("output").inner_text()
    step = int(text.split(" at ")[1])
    values = [
        line["reward"] for run in seeds[:3] for line in read_metrics(run / "metrics.jsonl") if line["step"] == step
    ]
    found = opened.evaluate(
        """step => { const line = drawnLines(pageData().runs, false)[0], i = line.metrics.steps.indexOf(step);
            const { low, high, n } = boundsOf(line, 'reward');
            return [line.metrics.values.reward[i], low[i], high[i], n[i]]; }""",
        step,
    )
    assert found == pytest.approx([sum(values) / 3, min(values), max(values), 3], rel=1e-5)
    assert "min to max" in text
    assert "3 runs" in text
    by_test_id(opened, "apart").check()
    expect(lines).to_have_text(["seed-0", "seed-1", "seed-2", "fast"])


def test_the_same_question_is_shown_with_the_answer_of_each_run(opened: Page):
    section = by_test_id(opened, "side-by-side")
    expect(section).to_contain_text(
        "Of 4 questions, all 4 runs answer 1 rightly and 0 wrongly; 3 they answer differently."
    )
    first = section.locator("details").first
    expect(first.locator("summary")).to_contain_text("✗✗✗✓")
    first.locator("summary").click()
    for run, letter in (("seed-0", "w"), ("seed-1", "w"), ("seed-2", "w"), ("fast", "r")):
        expect(first).to_contain_text(f"{run} writes {letter}")


# ----------------------------------------------------------------------------------------------------- n and intervals


def test_a_curve_names_the_sample_size_and_the_interval_where_they_are_known(
    page: Page, small_page: Path, small_run: Path
):
    open_page(page, small_page)
    last = read_metrics(small_run / "metrics.jsonl")[-1]
    accuracy = by_test_id(page, "curve", metric="eval/greedy")
    box = accuracy.locator(".u-over").bounding_box()
    assert box
    accuracy.locator(".u-over").hover(position={"x": box["width"] - 1, "y": 10})
    ends = [f"{100 * last[f'eval/greedy_{end}']:.1f}".removesuffix(".0") for end in ("low", "high")]
    expect(accuracy.locator("output")).to_contain_text(
        f"95\u00a0% interval {ends[0]}\u00a0% to {ends[1]}\u00a0%, n\u00a0=\u00a0150"
    )
    reward = by_test_id(page, "curve", metric="reward")
    reward.locator(".u-over").hover(position={"x": box["width"] - 1, "y": 10})
    expect(reward.locator("output")).to_contain_text(f"n\u00a0=\u00a0{last['num_scored']:.0f}")
    expect(reward.locator("output")).not_to_contain_text("interval")
