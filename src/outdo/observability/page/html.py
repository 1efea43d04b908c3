"""The page as one HTML file: data, scripts and styles in it, and a policy that lets nothing else in or out.

The policy names each script and style by its SHA-256. What a model wrote is only ever in the data, which is no script,
and which nothing in it can end.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"

VENDORED = ("vendor/htm-preact.umd.js", "vendor/uPlot.iife.min.js")
"""Scripts by others, before our own; `static/ORDER` says in which order those follow."""

STYLES = (
    "vendor/uPlot.min.css",
    *(f"{name}.css" for name in ("frame", "curves", "groups", "tokens", "card", "forks", "media")),
)

FORMAT = 1
"""Version of the data in the page."""

NO_SCRIPT = (
    "This page draws itself from the data within it, and its scripts are switched off. They are all in this file, and "
    "nothing is fetched from anywhere. `outdo inspect RUN --terminal` shows a step without a browser."
)

ENDING = re.compile(r"</(script|style)|<!--", re.IGNORECASE)
"""What would end a script or a style before its end."""


def page(runs: Sequence[Mapping[str, Any]], *, live: Mapping[str, str] | None = None) -> str:
    """The page of one run, or of two side by side, as `gather` tells them. `live`: the url and the token to follow it.

    It holds everything: it opens from disk, may be mailed, and asks no network for anything.
    """
    scripts, styles = _sources()
    data = embedded({"format": FORMAT, "runs": runs, "live": live})
    title = html.escape(" and ".join(str(run["name"]) for run in runs), quote=True)
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy(live=live is not None)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        '<link rel="icon" href="data:,">',
        f"<title>{title} · outdo</title>",
        *(f"<style>{style}</style>" for style in styles),
        "</head>",
        "<body>",
        f"<noscript><p>{html.escape(NO_SCRIPT)}</p></noscript>",
        '<div id="outdo"></div>',
        f'<script type="application/json" id="outdo-data">{data}</script>',
        *(f"<script>{script}</script>" for script in scripts),
        "</body>",
        "</html>",
    ]
    return "\n".join(lines).encode("utf-8", "replace").decode() + "\n"


def embedded(data: Any) -> str:
    """JSON that stands in a script element, whatever it holds: ASCII only, and no `<` in it."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def policy(*, live: bool = False) -> str:
    """The content security policy: these scripts, these styles, and nothing else; `live` may ask its own server."""
    scripts, styles = _sources()
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {' '.join(map(_hash, styles))}",
            "img-src data:",
            *(["connect-src 'self'"] if live else []),
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def notebook(page: str, height: int = 900) -> str:
    """A page as a frame of a notebook's output, `height` pixels high: it sees nothing of the notebook around it."""
    allowed = "allow-scripts allow-downloads"
    return (
        f'<iframe title="outdo" sandbox="{allowed}" width="100%" height="{int(height)}" frameborder="0" '
        f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
    )


@cache
def _sources() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The scripts and the styles of the page, in their order."""
    own = (STATIC / "ORDER").read_text(encoding="utf-8").split()
    scripts = tuple(_source(name) for name in (*VENDORED, *own))
    return scripts, tuple(_source(name) for name in STYLES)


def _source(name: str) -> str:
    """A file of ours or of others, as it will stand in the page."""
    text = (STATIC / name).read_text(encoding="utf-8").replace("\r\n", "\n")
    assert not ENDING.search(text), f"{name} would end its own element"
    return text


def _hash(source: str) -> str:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{digest}'"
