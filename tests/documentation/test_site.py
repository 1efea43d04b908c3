"""The site of the documentation: built without a warning, complete, and usable without a network or a server."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from zipfile import ZipFile

import pytest
from browser import DESKTOP, PHONE, by_test_id, open_page, opened_browser, violations, watched_page
from playwright.sync_api import Browser, expect

from outdo import HOME
from outdo.config.names import ADVANTAGES, OBJECTIVES
from outdo.config.settings import leaves
from outdo.extras.page.glossary import entries

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
EQUATION = '<div class="math">'
GLYPHS = ".katex-html"
"""What KaTeX draws, thousands of elements that a screen reader leaves out: it reads the MathML beside them."""
COLOURS = "at => { const { color, backgroundColor } = getComputedStyle(at); return `${color} on ${backgroundColor}`; }"
REPOSITORY = "https://github.com/OWNER/NAME"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it: a warning ends the build."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "OUTDO_REPOSITORY": REPOSITORY},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The address of the site: axe-core reads style sheets by requests, which a file cannot make."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_every_setting_metric_method_command_and_public_name_is_explained(site: Path):
    settings = (site / "reference/settings.html").read_text()
    assert [key for key in leaves() if f"<code>{key}</code>" not in settings] == []
    metrics = (site / "reference/metrics.html").read_text()
    assert [each.name for each in entries() if f"<code>{each.name}</code>" not in metrics] == []
    names = "".join(path.read_text() for path in (site / "reference/python").glob("*.html"))
    assert [name for name, module in HOME.items() if f'id="{module}.{name}"' not in names] == []
    equations = (site / "methods/equations.html").read_text()
    assert [name for name in {*OBJECTIVES, *ADVANTAGES} if f"<code>{name}</code>" not in equations] == []
    commands = (site / "reference/commands.html").read_text()
    said = subprocess.run([sys.executable, "-m", "outdo", "--help"], capture_output=True, text=True).stdout
    names = set(re.findall(r"^[│ ]+([a-z][a-z-]+)  ", said, re.MULTILINE))
    assert len(names) > 15
    assert [name for name in names if f">outdo {name}" not in commands] == []


def test_nothing_is_loaded_from_elsewhere(site: Path):
    loaded = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:[^\" >]+)|<link[^>]*href=\"?(https?:[^\" >]+)")
    found = {match[0] for page in site.rglob("*.html") for match in loaded.finditer(page.read_text())}
    assert found == set()


def test_a_search_finds_a_setting_without_a_server(site: Path, browser: Browser):
    with watched_page(browser, allowed="file:") as page:
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("/")
        page.keyboard.type("max_staleness")
        found = page.locator(".md-search-result__link")
        expect(found.first).to_be_visible()
        found.first.click()
        expect(page.locator("h1")).to_be_visible()


def test_notebooks_open_in_colab_and_kaggle_and_can_be_downloaded(site: Path):
    sources = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
    assert len(sources) == 3
    for source in sources:
        page = (site / f"notebooks/{source.stem}.html").read_text()
        file = f"blob/main/docs/notebooks/{source.name}"
        assert f'href="https://colab.research.google.com/github/OWNER/NAME/{file}"' in page
        assert f'href="https://kaggle.com/kernels/welcome?src={REPOSITORY}/{file}"' in page
        assert f'href="{source.name}"' in page
        assert (site / "notebooks" / source.name).read_bytes() == source.read_bytes()


ARCHIVES = sorted((ROOT / "docs/gallery").glob("*.zip"))


def test_every_run_of_the_gallery_is_small_and_has_a_page_an_archive_and_a_row(site: Path):
    rows = (ROOT / "docs/gallery.md").read_text()
    assert len(ARCHIVES) == 4
    for archive in ARCHIVES:
        assert archive.stat().st_size < 300_000
        assert f"](gallery/{archive.stem}.html)" in rows
        assert f"](gallery/{archive.name})" in rows
        assert (site / "gallery" / archive.name).read_bytes() == archive.read_bytes()
        assert (site / f"gallery/{archive.stem}.html").stat().st_size < 1_000_000
    assert not (site / "gallery/make.py").exists()


def test_the_archives_of_the_gallery_say_nothing_of_the_machine():
    for archive in ARCHIVES:
        with ZipFile(archive) as file:
            for name in (name for name in file.namelist() if not name.endswith(".parquet")):
                found = re.findall(r'"(/[^"\n ]+)"', file.read(name).decode())
                assert [path for path in found if Path(path).parts[1:2] != ("dev",)] == [], (archive.name, name)


@pytest.mark.parametrize(
    ("run", "said"),
    [("instructions", "GRPO"), ("ppo", "critic"), ("diverged", "One step moves the policy by"), ("calculator", "tool")],
)
def test_a_page_of_the_gallery_shows_its_tokens_and_what_its_row_promises(
    site: Path, browser: Browser, run: str, said: str
):
    with watched_page(browser, viewport=PHONE, color_scheme="dark") as page:
        open_page(page, site / f"gallery/{run}.html")
        expect(page.locator("body")).to_contain_text(said, ignore_case=True)
        assert by_test_id(page, "token").count() > 50
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")


def test_equations_are_drawn_in_the_fonts_of_the_site_and_in_the_colour_of_the_text(site: Path, browser: Browser):
    pages = [path for path in sorted(site.rglob("*.html")) if EQUATION in path.read_text()]
    assert len(pages) == 3
    for path in pages:
        with watched_page(browser, allowed="file:", color_scheme="dark") as page:
            page.goto(path.as_uri())
            page.evaluate("document.fonts.ready")
            drawn = page.locator(".math > .katex-display").count()
            assert (drawn, page.locator(".katex-error").count()) == (path.read_text().count(EQUATION), 0)
            used = "[...document.fonts].filter(font => font.status != 'unloaded').map(font => font.status)"
            assert set(page.evaluate(used)) == {"loaded"}
            colours = f"[...new Set([...document.querySelectorAll('{GLYPHS}, {GLYPHS} *')].map({COLOURS}))]"
            assert page.evaluate(colours) == [page.locator("p").first.evaluate(COLOURS)]


@pytest.mark.parametrize(
    ("viewport", "scheme"),
    [
        pytest.param(DESKTOP, "light", id="desktop-light"),
        pytest.param(PHONE, "dark", id="phone-dark"),
        pytest.param(DESKTOP, "dark", marks=pytest.mark.long, id="desktop-dark"),
        pytest.param(PHONE, "light", marks=pytest.mark.long, id="phone-light"),
    ],
)
def test_axe_finds_no_violation(served: str, browser: Browser, scheme: str, viewport: object):
    check_by_axe(served, MAIN, browser, scheme, viewport)


@pytest.mark.long  # eighty pages
def test_axe_finds_no_violation_in_any_page_but_those_of_the_python_reference(
    site: Path, served: str, browser: Browser
):
    names = [str(path.relative_to(site).with_suffix("")) for path in sorted(site.rglob("*.html"))]
    others = [name for name in names if name not in MAIN and not name.startswith("reference/python/")]
    assert {f"gallery/{archive.stem}" for archive in ARCHIVES} <= {*MAIN, *others}
    check_by_axe(served, others, browser, "light", DESKTOP)


MAIN = (
    "index",
    "tutorial",
    "reference/settings",
    "methods/index",
    "methods/equations",
    "reference/python/types",
    "gallery",
    "gallery/diverged",
)


def check_by_axe(served: str, names: Iterable[str], browser: Browser, scheme: str, viewport: object) -> None:
    """Open pages of the site; axe-core finds no violation, and the browser writes no error (`watched_page`)."""
    with watched_page(browser, viewport=viewport, allowed=served, color_scheme=scheme) as page:
        for name in names:
            page.goto(f"{served}/{name}.html")
            found = violations(page, without=GLYPHS)  # whose colours are those of the text, as a test above says
            assert not found, f"{name}: {found}"
