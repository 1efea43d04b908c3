"""Generate the pages of the site that are lists of what the code has: settings, commands, metrics, Python names.

MkDocs calls the functions `on_*` while it builds the site; see `mkdocs.yml`.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from pydantic_core import PydanticUndefined

from outdo import HOME
from outdo.cli.main import app
from outdo.config.settings import leaves
from outdo.extras.page.collect import View
from outdo.extras.page.glossary import TOPICS, entries
from outdo.extras.page.html import render_page
from outdo.extras.page.runs import collect_runs

REPOSITORY_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:src|tests|examples|benchmarks|CHANGELOG)[^)]*\)")
"""Links to files of the repository that are not pages: the site shows their text alone."""

WORKER_SCRIPT = "https://unpkg.com/iframe-worker/shim"
OWN_WORKER_SCRIPT = "vendor/iframe-worker.js"
"""The same script, version 1.0.4."""

EQUATION = '<div class="math">'
"""The beginning of an equation. Only pages with one load KaTeX, version 0.19.1, with the fonts that they use."""

SEARCH = 'data-md-component="search" role="dialog"'
"""The attributes of the search dialog, which has no name for screen readers."""

GROUPS_SHOWN = 8
"""The groups on a page of the gallery, for each step whose tokens are in the archive."""

TITLES = {"outcome": "Did training help?", "data": "Was there a signal?", "tokens": "Did the tokens move?"}
TITLES |= {"policy": "How is the policy?", "engine": "Does the engine agree?", "cost": "What did it cost?"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the reference, and the decisions to the background."""
    decisions = sorted(path.name for path in (Path(config.docs_dir) / "decisions").glob("0*.md"))
    sections = {title: pages for section in config.nav or [] for title, pages in section.items()}
    sections["Reference"].append({"Python": [f"reference/python/{part}.md" for part in parts()]})
    sections["Background"].append({"Decisions": ["decisions/README.md", *(f"decisions/{name}" for name in decisions)]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {"settings": settings_page(), "commands": commands_page(), "metrics": metrics_page()}
    pages |= {f"python/{part}": python_page(part, names) for part, names in parts().items()}
    for name, lines in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(lines)))
    for path in sorted((Path(config.docs_dir) / "notebooks").glob("*.ipynb")):
        content = "\n".join(notebook_page(path, config.extra["repository"]))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=content))
    for path in sorted((Path(config.docs_dir) / "gallery").glob("*.zip")):
        files.append(File.generated(config, f"gallery/{path.stem}.html", content=page_of_run(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to files that are not on the site by their text."""
    return REPOSITORY_LINK.sub(r"\1", markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load the script that lets a page search without a server from the site itself.

    The search dialog gets a name, and an empty header of a table becomes an empty cell, for screen readers.
    """
    output = _with_named_search(output).replace("<th></th>", "<td></td>")
    if EQUATION in output:
        output = _with_katex(output, page.url)
    return output.replace(WORKER_SCRIPT, get_relative_url(OWN_WORKER_SCRIPT, page.url))


def _with_named_search(output: str) -> str:
    return output.replace(SEARCH, f'{SEARCH} aria-label="Search"')


def _with_katex(output: str, url: str) -> str:
    style, library, script = (
        get_relative_url(path, url) for path in ("vendor/katex/katex.min.css", "vendor/katex/katex.min.js", "math.js")
    )
    output = output.replace("</head>", f'<link rel="stylesheet" href="{style}"></head>')
    return output.replace("</body>", f'<script src="{library}"></script><script src="{script}"></script></body>')


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """Do the same for the page of a missing address."""
    return _with_named_search(output_content).replace(WORKER_SCRIPT, OWN_WORKER_SCRIPT)


def settings_page() -> Iterator[str]:
    """Yield every setting of a recipe with its default."""
    yield "# Settings"
    yield "Every setting of a [recipe](../recipe.md), as `outdo config` prints them."
    yield "`outdo config --pieces` lists the options of pieces.\n"
    yield "| setting | default | |"
    yield "|---|---|---|"
    for key, field in leaves().items():
        default = "required" if field.default is PydanticUndefined else f"`{_shown(field.default)}`"
        yield f"| `{key}` | {'' if field.default is None else default} | {_cell(field.description or '')} |"


def commands_page() -> Iterator[str]:
    """Yield every command with its arguments and options."""
    yield "# Commands"
    for name, command in _commands(typer.main.get_command(app), "outdo"):
        yield f"\n## {name}\n"
        yield f"{_prose(command.help or '')}\n"
        if command.params:
            yield "| argument or option | |"
            yield "|---|---|"
        for parameter in command.params:
            is_option = parameter.param_type_name == "option"
            shown = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else parameter.name.upper()
            yield f"| `{shown}` | {_cell(parameter.help or '')} |"


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for each, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {each}")
        else:
            yield f"{name} {each}", command.loaded()


def metrics_page() -> Iterator[str]:
    """Yield every metric with its definition, as `outdo glossary` prints it."""
    yield "# Metrics"
    yield "The metrics of `metrics.jsonl`, of the page and of trackers, as `outdo glossary NAME` explains them."
    yield "`*` stands for any name.\n"
    for topic in TOPICS:
        yield f"\n## {TITLES[topic]}\n"
        for entry in (each for each in entries() if each.topic == topic):
            yield f"### {_cell(entry.title)}\n"
            yield f"`{entry.name}`\n"
            yield f"{_prose(entry.what)}\n"
            yield f"**Healthy.** {_prose(entry.healthy)}\n"
            yield f"**Otherwise.** {_prose(entry.otherwise)}\n"


def parts() -> dict[str, list[str]]:
    """Return the public names by the folder that defines them."""
    found: dict[str, list[str]] = {}
    for name, module in HOME.items():
        found.setdefault(module.split(".")[1], []).append(name)
    return dict(sorted(found.items()))


def python_page(part: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the public names of a folder, whose docstrings are read from the source."""
    yield f"# {part.capitalize()}"
    yield "Import these names from `outdo`.\n"
    for name in names:
        yield f"::: {HOME[name]}.{name}\n"


def notebook_page(path: Path, repository: str) -> Iterator[str]:
    """Yield the cells of a notebook, and above them links that open it; in Colab and Kaggle if it is on GitHub."""
    title, *cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    yield "".join(title["source"])
    links = {"Download": path.name}
    if repository:
        address = f"{repository}/blob/main/docs/notebooks/{path.name}"
        links["Open in Colab"] = address.replace("https://github.com/", "https://colab.research.google.com/github/")
        links["Open in Kaggle"] = f"https://kaggle.com/kernels/welcome?src={address}"
    yield "\n" + " · ".join(f"[{text}]({link})" for text, link in links.items()) + "\n"
    for cell in cells:
        text = "".join(cell["source"])
        yield f"{text}\n" if cell["cell_type"] == "markdown" else f"```python\n{text}\n```\n"


def page_of_run(archive: Path) -> str:
    """Return the page of a run of the gallery, as `outdo inspect` writes it."""
    with tempfile.TemporaryDirectory() as folder, ZipFile(archive) as file:
        run = Path(folder, archive.stem)
        file.extractall(run)
        return render_page(collect_runs([run], View(groups=GROUPS_SHOWN)))


def _shown(value: Any) -> str:
    return str(getattr(value, "name", value)) if not isinstance(value, tuple) else str(list(map(_shown, value)))


def _cell(text: str) -> str:
    return _prose(" ".join(text.split())).replace("|", "\\|")


def _prose(text: str) -> str:
    """Return a text as Markdown that shows it as it is."""
    return re.sub(r"([<>\[\]*_{}])", r"\\\1", text)
