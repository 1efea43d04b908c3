"""Whatever a model wrote or a data file holds is shown as text, and does nothing."""

from pathlib import Path

import pytest
from browser import by_test_id, open_page, page_data
from playwright.sync_api import Browser, Page
from run_folders import HOSTILE, write_hostile_run

TAGS = "() => [...new Set([...document.querySelectorAll('*')].map(e => e.tagName))]"
SCRIPTS = "() => document.scripts.length"
HANDLERS = """() => [...document.querySelectorAll('*')].flatMap(e => [...e.attributes])
    .filter(a => a.name.startsWith('on') || /^\\s*javascript:/i.test(a.value)).map(a => a.name)"""


@pytest.fixture(scope="module")
def hostile_page(page_of, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(write_hostile_run(tmp_path_factory.mktemp("runs") / "hostile"))


def look_everywhere(page: Page) -> set[str]:
    """Open every group, and the card of a token where the hostile ones are; return the texts of all tokens."""
    pieces: set[str] = set()
    for group in by_test_id(page, "group-row").all():
        group.click()
        by_test_id(by_test_id(page, "rollout").first, "token").nth(2).hover()
        by_test_id(by_test_id(page, "rollout").last, "token").nth(2).hover()
        pieces |= set(by_test_id(page, "token").all_inner_texts())
    return pieces


SEEN = (
    "<script>document.title='owned'</script>",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<img·src=x·onerror=alert(1)>",
    "<a·href='javascript:alert(1)'>look</a>",
    "␛[31mred␛[0m␛]8;;https://example.org␛",
    "⟨RLO⟩right·to·left",
    "=cmd|'/c·calc'!A1",
    "[/b][bold·red]markup[/]",
    "nul␀inside",
    "line⟨LS⟩and⟨PS⟩paragraph",
    "&lt;&#60;script&#62;",
)


def test_hostile_text_is_shown_literally_adds_no_element_and_runs_nothing(
    page: Page, small_page: Path, hostile_page: Path
):
    open_page(page, small_page)
    look_everywhere(page)
    harmless, scripts = set(page.evaluate(TAGS)), page.evaluate(SCRIPTS)
    open_page(page, hostile_page)
    pieces = look_everywhere(page)
    assert set(page.evaluate(TAGS)) <= harmless
    assert page.evaluate(SCRIPTS) == scripts
    assert page.evaluate(HANDLERS) == []
    assert "owned" not in page.title()
    assert not [text for text in SEEN if not any(text in piece for piece in pieces)]
    assert not [piece for piece in pieces if set(piece) & set("\x1b\x00\u202e\u2028")]


def test_the_data_in_the_page_equals_the_data_of_the_run(hostile_page: Path):
    html = hostile_page.read_text(encoding="utf-8")
    run = page_data(html)["runs"][0]
    assert {f"rewards/{text[:100]}/mean" for text in HOSTILE} <= set(run["metrics"]["values"])
    assert html.count("<script") == html.count("</script>")
    assert html.isascii() or html.encode("utf-8"), "half of a surrogate pair is in no file"


def test_an_injected_script_is_blocked(browser: Browser, small_page: Path):
    page = browser.new_page()  # not a watched one: it is to complain
    open_page(page, small_page)
    refused = page.evaluate(INTRUDE, "http://outdo.invalid/")
    page.close()
    assert set(refused) == REFUSED


REFUSED = {"script-src-elem", "script-src-attr", "style-src-attr", "img-src", "connect-src", "base-uri"}
INTRUDE = """async (elsewhere) => {
    const refused = []
    document.addEventListener('securitypolicyviolation', event => refused.push(event.effectiveDirective))
    const script = document.createElement('script')
    script.textContent = 'window.intruded = true'
    document.body.append(script)
    const holder = document.createElement('div')
    holder.innerHTML = '<b onclick="window.intruded = true" style="color: red">x</b>'
    document.body.append(holder)
    holder.firstChild.click()
    const image = new Image()
    image.src = elsewhere + 'image.png'
    const base = document.createElement('base')
    base.href = elsewhere
    document.head.append(base)
    await fetch(elsewhere).catch(() => null)
    await new Promise(done => setTimeout(done, 50))
    if (window.intruded) refused.push('the script ran')
    return refused
}"""
