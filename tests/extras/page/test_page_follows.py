"""A page that follows: both of two runs, the tokens of each new step, and what a resumed run does anew."""

import json
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from browser import by_test_id, open_page, watched_page
from playwright.sync_api import Browser, Page, expect
from run_courses import COURSES, write_course
from run_folders import add_step, start_run
from test_held_out import answers, record

from outdo.extras.page.server import app

STEPS = 8
PATIENCE = 600_000  # milliseconds; the page asks every two seconds


def begun(folder: Path, *, steps: int = 3) -> Path:
    """A run that is at its third step."""
    start_run(folder, steps=STEPS)
    for step in range(1, steps + 1):
        add_step(folder, step, steps=STEPS)
    return folder


@contextmanager
def followed(browser: Browser, *runs: Path, shows: str = "token") -> Iterator[Page]:
    """The page of `runs`, served and open. In the end nothing was wrong: no request was answered with an error."""
    token = secrets.token_urlsafe(8)
    server = uvicorn.Server(uvicorn.Config("", host="127.0.0.1", port=0, log_level="critical", ws="none"))
    sockets = [server.config.bind_socket()]
    sockets[0].listen()  # so that the browser may ask before the thread has begun to serve
    port = sockets[0].getsockname()[1]
    server.config.app = app(runs, port=port, token=token)
    thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{port}/"
    try:
        with watched_page(browser, allowed=url) as page:
            page.goto(f"{url}?token={token}")
            by_test_id(page, shows).first.wait_for()
            yield page
    finally:
        server.should_exit = True
        thread.join(10)


def back_to(folder: Path, step: int) -> None:
    """As a resume leaves a run: nothing after `step` is known any more."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))
    for later in range(step + 1, STEPS + 1):
        (folder / "tokens" / f"step_{later:06d}.parquet").unlink(missing_ok=True)


def test_a_page_that_is_opened_at_the_start_tells_what_was_before_the_first_step_and_shows_a_hack(
    browser: Browser, tmp_path: Path
):
    run = start_run(tmp_path / "run", steps=STEPS)
    with followed(browser, run, shows="run-state") as page:
        write_course(run, COURSES["hacked"], rule=True, held_out=True)
        lead = by_test_id(page, "lead")
        expect(lead).to_contain_text("The share of right held-out answers went from 21.9\u00a0% to 100\u00a0%")
        expect(by_test_id(page, "examples")).to_have_count(0)
        record(run, {20: answers("rrrr")})
        expect(by_test_id(page, "examples").locator("li")).to_have_count(1)


@pytest.mark.release
def test_a_new_evaluation_can_be_compared(browser: Browser, tmp_path: Path):
    run = record(begun(tmp_path / "run"), {0: answers("wwww")})
    with followed(browser, run) as page:
        expect(by_test_id(page, "paired")).to_have_count(0)
        record(run, {3: answers("rrrw")})
        expect(by_test_id(page, "paired")).to_contain_text("Of 4 questions: 3 became right, 0 became wrong")


def test_the_points_of_a_very_long_run_are_thinned_without_losing_evaluations(browser: Browser, small_page: Path):
    with watched_page(browser) as page:
        open_page(page, small_page)
        steps, reward, evaluated = page.evaluate("""() => {
            const steps = Array.from({ length: 4001 }, (_, i) => i + 1);
            const values = { reward: steps.map((step) => step / 2), rare: steps.map((s) => (s % 10 ? null : s)) };
            const made = thinned({ steps, values });
            return [made.steps, made.values.reward, made.values.rare.filter((value) => value !== null)];
        }""")
        assert steps == list(range(1, 4002, 2))
        assert reward == [step / 2 for step in steps]
        assert evaluated == list(range(10, 4001, 10))


def test_a_resume_is_noticed_even_if_the_run_is_already_farther(browser: Browser, tmp_path: Path):
    run = begun(tmp_path / "run", steps=4)
    with followed(browser, run) as page:
        before = by_test_id(page, "rollout").first.inner_text()
        resumed = shutil.copytree(run, tmp_path / "resumed")
        back_to(resumed, 2)
        for step in (3, 4, 5):
            add_step(resumed, step, steps=STEPS, seed=7)
        run.rename(tmp_path / "before")
        resumed.rename(run)  # at once: the page sees no state between them
        expect(page.get_by_text("step 4 of 5")).to_be_visible(timeout=PATIENCE)
        slider = by_test_id(page, "step-slider").get_by_role("slider")
        expect(slider).to_have_attribute("aria-valuetext", "step 4", timeout=PATIENCE)
        answer = by_test_id(page, "rollout").first
        expect(answer).not_to_have_text(before, use_inner_text=True, timeout=PATIENCE)
