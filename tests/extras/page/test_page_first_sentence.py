"""The first sentence, the warning and the tiles of a page agree with each other and with `outdo doctor`.

Runs of every course, with and without a rule of what is right, with and without held-out questions, finished and still
running.
"""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from browser import by_test_id, open_page, watched_page
from playwright.sync_api import Browser, Page, expect
from run_courses import COURSES, write_course

from outdo.extras.doctor import Finding, diagnose
from outdo.extras.doctor.hacks import HACKS
from outdo.extras.doctor.series import RunMetrics
from outdo.extras.page.collect import collect_run, ends_of
from outdo.run.folder import run_files
from outdo.run.folder.run_folder import RunFolder, read_metrics

ROSE, FELL = "The reward rose.", "The reward fell."
UNSURE = "Not certain."
HACK = 'he answers no longer read the word in "about a _ Use".'
HACK_PAYS, HACK_ALONE = f"The reward rose, and t{HACK}", f"T{HACK}"

# The sentence in bold type, of a run with a rule and held-out questions; with held-out questions alone; without them.
BOLD = {
    "chance": (UNSURE, UNSURE, UNSURE),
    "reward alone": (ROSE, ROSE, ROSE),
    "gained": ("Yes.", ROSE, ROSE),
    "lost": ("No, it got worse.", FELL, FELL),
    "reward lost": (FELL, FELL, FELL),
    "lost again": ("Yes.", ROSE, ROSE),
    "hacked": (HACK_PAYS,) * 3,
    "hacked by chance": (HACK_ALONE,) * 3,
    "hacked and lost": ("No, it got worse.", FELL, FELL),
}
GOOD_NEWS = ("held_out_rose", "reward_rose")
ON_TOP = ("lead", "doubt", "reward-parts", "tile")
NOT_CERTAIN = re.compile(r"intervals overlap|may be chance")
CASES = [(course, rule, held_out) for course in COURSES for rule in (True, False) for held_out in (True, False)]


OPEN = """data => {
    const root = document.getElementById('outdo');
    render(null, root);
    render(html`<${App} data=${data} />`, root);
}"""


@pytest.fixture(scope="module")
def opened(browser: Browser, small_page: Path) -> Iterator[Page]:
    """A page whose run is replaced by that of each test: to open a hundred files takes a minute."""
    with watched_page(browser) as page:
        open_page(page, small_page)
        yield page


@pytest.mark.parametrize("running", [False, True], ids=["finished", "running"])
@pytest.mark.parametrize(("course", "rule", "held_out"), CASES)
def test_the_first_screen_says_what_the_doctor_says(
    opened: Page, tmp_path: Path, course: str, rule: bool, held_out: bool, running: bool
):
    run = write_course(tmp_path / "run", COURSES[course], rule=rule, held_out=held_out)
    with RunFolder(run) if running else nullcontext():
        opened.evaluate(OPEN, {"runs": [collect_run(run)]})
    findings = doctor(run)
    lead, doubt = by_test_id(opened, "lead"), by_test_id(opened, "doubt")
    expect(lead).to_be_in_viewport()
    bold = plain(lead.locator("b").first.inner_text())
    assert bold == expected(course, findings, rule=rule, held_out=held_out, running=running)
    title = "Does training help so far?" if running else "Did training help?"
    expect(opened.get_by_role("heading", name=title)).to_be_visible()

    certain = {each.rule for each in findings if not NOT_CERTAIN.search(each.text)}
    assert bold.startswith(("Yes.", "The reward rose")) == bool(certain.intersection(GOOD_NEWS))
    if bold in ("No, it got worse.", FELL):
        assert ("accuracy_fell" if held_out else "reward_fell") in certain

    warnings = [each for each in findings if each.level == "warning" and not each.cause]
    screen = plain(" ".join(text for name in ON_TOP for text in by_test_id(opened, name).all_inner_texts()))
    assert doubt.count() == bool(warnings)
    for part in first_warning(warnings):
        assert part.lower() in screen.lower()
    for finding in findings:
        if finding.rule in (*GOOD_NEWS, "reward_fell") and not (rule and finding.metric.endswith("_reward")):
            for number in numbers(finding):
                assert number in screen

    words = screen.replace("No rule of this run says which answers are right (eval.right)", "")
    words = words.replace("so it is not known whether more of them are right", "")
    assert rule or not re.search(r"\bright\b|correct|accuracy", words)
    assert held_out or "held-out" not in words.lower().replace("fewer than two evaluations on held-out questions", "")


def expected(course: str, findings: list[Finding], *, rule: bool, held_out: bool, running: bool) -> str:
    """The sentence in bold type; of half a hack it is what the doctor warns of, if it does."""
    if course == "half hacked":
        hacks = [each.text.split(": ")[0] for each in findings if each.rule in HACKS and each.level == "warning"]
        return f"The reward rose, and {hacks[0]}." if hacks else BOLD["gained"][0 if rule and held_out else 1]
    bold = BOLD[course][0 if rule and held_out else 1 if held_out else 2]
    return "Not certain yet." if running and bold == UNSURE else bold


def plain(text: str) -> str:
    return " ".join(text.split())


def doctor(run: Path) -> list[Finding]:
    lines = read_metrics(run / "metrics.jsonl")
    summary, recipe = (run_files.table(run, name, pytest.fail) for name in ("summary.json", "recipe.toml"))
    return diagnose(run_files.with_initial_evaluation(lines, summary), recipe=recipe)


def first_warning(warnings: list[Finding]) -> list[str]:
    """The text of the first one; that of a hack in the two parts that the page may show apart."""
    texts = [each.text.split(": ", 1) if each.rule in HACKS else [each.text] for each in warnings[:1]]
    return [part for parts in texts for part in parts]


def numbers(finding: Finding) -> list[str]:
    """The results that a finding names, as the page writes them."""
    without_intervals = re.sub(r"\(.*?\)", "", finding.text)
    found = re.findall(r"\d+\.?\d*%?", without_intervals.partition(". ")[0])
    return [re.sub(r"(\.0)?%", " %", number) for number in found if number != "95"]


def test_the_ends_of_a_metric_are_those_that_the_doctor_compares():
    for length in (5, 10, 13, 15, 16, 37, 200):
        lines = [{"step": step, "reward": step**2 / 7, "rare": 1.0} for step in range(1, length)]
        ends = RunMetrics(lines).first_and_last("reward")
        first, last, few = ends_of(lines)["reward"]
        expected = None if few < 3 else [pytest.approx(end.mean, rel=1e-5) for end in ends or ()]
        assert expected in (None, [first, last])
        assert (ends is None) == (few < 3)
