"""The page as one HTML file with data, scripts and styles, and a content security policy that blocks everything else.

The policy allows each script and style by its SHA-256. Model text is only in the data, which the browser does not
run; no text can close the element of the data.
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
"""Third-party scripts, before our own, whose order is in `static/ORDER`."""

STYLES = (
    "vendor/uPlot.min.css",
    *(f"{name}.css" for name in ("frame", "curves", "groups", "tokens", "card", "forks", "media")),
)

FORMAT = 1
"""Version of the data format in the page."""

NO_SCRIPT = (
    "This page needs JavaScript to show its data, and JavaScript is switched off. All scripts are in this file, and "
    "they fetch nothing."
)

CLOSING_TAG = re.compile(r"</(script|style)|<!--", re.IGNORECASE)
"""Text that would close a script or style element too early."""


def render_page(runs: Sequence[Mapping[str, Any]], *, live: Mapping[str, str] | None = None) -> str:
    """Return the page of one run, or of two side by side. `live` is the URL and the token of a served page.

    `runs` is the result of `collect_run` for each run. The page is complete: it opens from disk, can be sent by mail,
    and makes no network requests.
    """
    scripts, styles = _sources()
    data = script_json({"format": FORMAT, "runs": runs, "live": live})
    title = html.escape(" and ".join(str(run["name"]) for run in runs), quote=True)
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{security_policy(live=live is not None)}">',
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


def script_json(data: Any) -> str:
    """Return JSON that is safe in a script element, whatever its content: ASCII only, without `<`."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def security_policy(*, live: bool = False) -> str:
    """Return the content security policy: these scripts and styles only; `live` allows requests to the own server."""
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


@cache
def _sources() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the scripts and the styles of the page, in their order."""
    ours = (STATIC / "ORDER").read_text(encoding="utf-8").split()
    scripts = tuple(_source(name) for name in (*VENDORED, *ours))
    return scripts, tuple(_source(name) for name in STYLES)


def _source(name: str) -> str:
    """Return a static file as it appears in the page."""
    text = (STATIC / name).read_text(encoding="utf-8").replace("\r\n", "\n")
    assert not CLOSING_TAG.search(text), f"{name} would close its own element"
    return text


def _hash(source: str) -> str:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{digest}'"
