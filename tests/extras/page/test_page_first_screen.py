"""Seen before anything is chosen: whether training helped, the curves that tell most, and a way on by keyboard."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from browser import by_test_id, nearly_equal, number, open_page, watched_page
from playwright.sync_api import Browser, Page, expect
from run_folders import write_small_run, write_watched_run

from outdo.extras.record import parquet as files
from outdo.run.evaluation import held_out_completions
from outdo.run.folder.run_folder import read_metrics


@pytest.fixture(scope="module")
def opened(browser: Browser, small_page: Path) -> Iterator[Page]:
    """The page of the small run, drawn once."""
    with watched_page(browser) as page:
        open_page(page, small_page)
        yield page


def test_the_first_screen_answers_whether_training_helped(opened: Page, small_run: Path):
    before = json.loads((small_run / "summary.json").read_text())["before"]
    after = [line for line in read_metrics(small_run / "metrics.jsonl") if "eval/greedy" in line][-1]
    lines = [{f"eval/{name}": value for name, value in before.items()}, after]
    answer = by_test_id(opened, "tile").first
    expect(by_test_id(opened, "lead")).to_be_in_viewport()
    expect(answer).to_be_in_viewport()
    expect(by_test_id(opened, "lead")).to_contain_text(re.compile(r"^(Yes|No, it got worse|Not certain)\."))
    shown = answer.locator(".way").inner_text().split("→")
    for text, line in zip(shown, lines, strict=True):
        assert nearly_equal(number(text.strip()), 100 * line["eval/greedy"], 3)
    ends = [f"{100 * line[f'eval/greedy_{end}']:.1f}" for line in lines for end in ("low", "high")]
    assert re.findall(r"[\d.]+", answer.locator(".said").inner_text())[1:] == [end.removesuffix(".0") for end in ends]


def test_rewards_decide_where_the_share_right_cannot(page: Page, page_of: Callable[..., Path], tmp_path: Path):
    folder = write_small_run(tmp_path / "graded")
    lines = read_metrics(folder / "metrics.jsonl")
    summary = json.loads((folder / "summary.json").read_text())
    ends = [(summary["before"], "", 0.4), (lines[-1], "eval/", 0.6)]
    for line, prefix, mean in ends:
        line |= {f"{prefix}greedy": 0.1, f"{prefix}greedy_low": 0.05, f"{prefix}greedy_high": 0.15}
        line |= {f"{prefix}sampled": 0.1, f"{prefix}sampled_low": 0.05, f"{prefix}sampled_high": 0.15}
        line |= {f"{prefix}greedy_reward{end}": mean + far for end, far in (("", 0), ("_low", -0.05), ("_high", 0.05))}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps(summary))
    open_page(page, page_of(folder))
    expect(by_test_id(page, "lead")).to_contain_text("The reward rose.")
    expect(by_test_id(page, "lead")).to_contain_text("0.6")
    right = "The share of right answers is 10\u00a0%; it was 10\u00a0%, which may be chance."
    expect(by_test_id(page, "lead")).to_contain_text(right)


def test_what_is_known_of_right_answers_is_read_in_the_metrics(page: Page, page_of, tmp_path: Path):
    """Answers in training have verdicts, and the held-out ones have none."""

    def without_verdicts(line: dict[str, Any]) -> None:
        for name in [name for name in line if name.startswith("eval/")]:
            value = line.pop(name)
            line[re.sub(r"(greedy|sampled)", r"\1_reward", name, count=1)] = value

    run = changed(tmp_path / "rewards", without_verdicts)
    (run / "summary.json").unlink()
    open_page(page, page_of(run))
    expect(by_test_id(page, "lead")).to_contain_text("No held-out answer was judged right or wrong, so it is not known")


def test_a_reward_that_fell_is_not_said_to_have_risen(page: Page, page_of, tmp_path: Path):
    """There is no evaluation; the mean over all groups of dynamic sampling fell, and that of the kept ones rose."""

    def falls(line: dict[str, Any]) -> None:
        for name in [name for name in line if name.startswith("eval/")]:
            del line[name]
        line |= {"reward": line["step"] / 10, "dynamic_sampling/reward": 1 - line["step"] / 10}
        line["completions/repeated_ratio"] = 0.01 if line["step"] < 2 else 0.6

    run = changed(tmp_path / "fell", falls)
    (run / "summary.json").unlink()
    open_page(page, page_of(run))
    expect(by_test_id(page, "lead")).to_contain_text("The mean reward in training went from 0.85 to 0.45")
    expect(by_test_id(page, "lead")).not_to_contain_text("The reward rose")


def test_interval_limits_and_constant_metrics_are_not_drawn(opened: Page):
    drawn = {curve.get_attribute("data-metric") for curve in by_test_id(opened, "curve").all()}
    said = {curve.get_attribute("data-metric") for curve in by_test_id(opened, "undrawn").all()}
    assert "eval/greedy" in drawn
    assert not {metric for metric in drawn | said if metric and metric.endswith(("_low", "_high"))}
    assert said
    assert not drawn & said


def test_the_list_of_groups_is_one_tab_stop_with_arrow_keys(opened: Page):
    groups = by_test_id(opened, "group-row").locator("button")
    assert [each.get_attribute("tabindex") for each in groups.all()].count("0") == 1
    groups.first.focus()
    opened.keyboard.press("ArrowDown")
    expect(groups.nth(1)).to_be_focused()
    opened.keyboard.press("End")
    expect(groups.last).to_be_focused()
    opened.keyboard.press("Enter")
    expect(groups.last).to_have_attribute("aria-pressed", "true")


@pytest.mark.release
def test_without_a_verdict_nothing_is_called_right(page: Page, page_of: Callable[..., Path], tmp_path: Path):
    folder = write_small_run(tmp_path / "dense")
    for name in ("metrics.jsonl", "summary.json"):
        text = (folder / name).read_text()
        for old, new in (("greedy_", "greedy_reward_"), ("sampled_", "sampled_reward_")):
            text = text.replace(f"{old}low", f"{new}low").replace(f"{old}high", f"{new}high")
        for kind in ("greedy", "sampled"):
            text = text.replace(f'{kind}":', f'{kind}_reward":')
        for gone in ("right", "frac_all_right", "frac_all_wrong"):
            text = re.sub(rf'"{gone}": [\d.e-]+, ', "", text)
        (folder / name).write_text(text)
    for step in range(1, 7):
        table = files.read(folder, step)
        place = table.schema.get_field_index("right")
        nulls = pyarrow.nulls(len(table), pyarrow.bool_())
        files.write(folder, step, table.set_column(place, "right", nulls))
    open_page(page, page_of(folder))
    expect(by_test_id(page, "lead")).to_contain_text("The mean reward of held-out answers is 0.82 after step 6")
    expect(by_test_id(page, "lead")).to_contain_text(
        "No rule of this run says which answers are right (eval.right), so it is not known"
    )
    expect(by_test_id(page, "lead")).to_contain_text("The reward rose.")
    expect(by_test_id(page, "lead")).not_to_contain_text("Yes")
    expect(page.locator("#groups")).to_contain_text("rewards differ")
    words = page.locator("#groups, #rollouts, #answer").all_inner_texts()
    assert not [text for text in words if re.search(r"\b(all right|all wrong|right and wrong|✓|✗)", text)]


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A small run whose lines of metrics are changed."""
    run = write_small_run(folder)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        change(line)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


@pytest.mark.parametrize("intervals", [True, False])
def test_without_an_interval_with_a_width_nothing_is_certain(
    page: Page, page_of, tmp_path: Path, intervals: bool
) -> None:
    """As with one held-out question and a reward between 0 and 1."""
    reward = "eval/greedy_reward"

    def one_question(line: dict[str, Any]) -> None:
        for name in [name for name in line if name.startswith("eval/")]:
            del line[name]
        line[reward] = 0.9 + line["step"] / 1000
        line |= {f"{reward}_low": line[reward], f"{reward}_high": line[reward]} if intervals else {}

    run = changed(tmp_path / "one", one_question)
    (run / "summary.json").unlink()
    open_page(page, page_of(run))
    expect(by_test_id(page, "lead")).to_contain_text(re.compile(r"^Not certain\..* No 95\s% interval is known\."))
    expect(by_test_id(page, "lead")).not_to_contain_text("overlap")


def test_a_warning_stands_beside_the_answer(page: Page, page_of, small_page: Path, tmp_path: Path):
    """The held-out result rose, but so it does for an answer that is only long."""
    open_page(page, page_of(changed(tmp_path / "long", lambda line: line.update(reward_length_correlation=0.99))))
    expect(by_test_id(page, "lead")).to_contain_text("Yes.")
    expect(by_test_id(page, "doubt")).to_contain_text("Within groups the reward follows the length of the answer")
    expect(by_test_id(page, "doubt")).to_be_in_viewport()
    open_page(page, small_page)
    expect(by_test_id(page, "doubt")).to_have_count(0)


def test_the_evaluation_that_is_decided_answers(page: Page, page_of, tmp_path: Path):
    """Greedy answers did not change, sampled answers became worse."""

    def worse(line: dict[str, Any]) -> None:
        if "eval/greedy" in line:
            line |= {"eval/greedy": 0.25, "eval/greedy_low": 0.17, "eval/greedy_high": 0.33}
            line |= {"eval/sampled": 0.02, "eval/sampled_low": 0.0, "eval/sampled_high": 0.04}

    open_page(page, page_of(changed(tmp_path / "worse", worse)))
    lead = by_test_id(page, "lead")
    expect(lead).to_contain_text("No, it got worse. The policy answers 2\u00a0% of the held-out questions correctly")
    expect(lead).to_contain_text("(sampled)")


def test_a_hack_is_the_first_sentence_and_two_answers_show_it(page: Page, page_of, tmp_path: Path):
    def stops_reading(line: dict[str, Any]) -> None:
        line["reads/about a _ Use"] = 20.0 if line["step"] < 4 else 0.3

    run = changed(tmp_path / "hack", stops_reading)
    given = {"kind": "greedy", "sample": 0, "answer": "", "right": True, "reward": 1.0}
    texts = ["Never.", "Never.", "The bright."]
    held_out_completions.write(
        held_out_completions.path_of(run, 6),
        [given | {"id": str(n), "prompt": f"Write about {n}.", "completion": text} for n, text in enumerate(texts)],
    )
    open_page(page, page_of(run))
    expect(by_test_id(page, "lead")).to_contain_text(
        'The reward rose, and the answers no longer read the word in "about a _ Use".'
    )
    expect(by_test_id(page, "lead")).not_to_contain_text("Yes")
    expect(by_test_id(page, "doubt")).to_contain_text("warning: With the word of another question there")
    expect(by_test_id(page, "examples").locator("li")).to_have_count(2)
    expect(by_test_id(page, "examples")).to_contain_text("Write about 0.")
    expect(by_test_id(page, "examples")).to_contain_text("The bright.")
    expect(by_test_id(page, "examples")).to_be_in_viewport()


def roles(page: Page, metric: str) -> list[str]:
    """What the curves, and the list of metrics that are not drawn, say of a reward."""
    return by_test_id(page.locator(f'[data-metric="{metric}"]'), "role").all_inner_texts()


def test_a_reward_that_is_trained_on_and_one_that_is_watched_stand_side_by_side(page: Page, page_of, tmp_path: Path):
    open_page(page, page_of(write_watched_run(tmp_path / "hack", topic=(0.9, 0.1))))
    expect(by_test_id(page, "lead")).to_contain_text(
        "The reward rose, and the answers earn less of the reward topic.score, which is only watched."
    )
    sentence = by_test_id(page, "reward-parts")
    expect(sentence).to_be_in_viewport()
    assert " ".join(sentence.inner_text().split()).startswith(
        "The reward that is trained on (mine.score) rose from 0.43 to 0.75; "
        "the one that is only watched (topic.score) fell from 0.9 to 0.1."
    )
    expect(by_test_id(page, "doubt")).to_have_count(0)  # the sentence has said it
    expect(by_test_id(page, "tile").filter(has_text="Mean reward")).to_contain_text("trained on")
    for metric in ("rewards/mine.score/mean", "eval/greedy_rewards/mine.score/mean", "reward"):
        assert roles(page, metric) == ["trained on"]
    for metric in ("rewards/topic.score/mean", "eval/greedy_rewards/topic.score/mean"):
        assert roles(page, metric) == ["watched"]
    assert roles(page, "eval/greedy") == []
