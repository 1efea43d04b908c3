"""`outdo doctor --packages`: the installed packages that outdo uses, and which of them do not fit."""

import json
import platform
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from outdo import __version__
from outdo.cli.output import print_text
from outdo.utils.packages import Level, misfits, packages

COLOURS: dict[Level, str] = {"error": "bold red", "warning": "bold yellow", "note": "cyan"}


def run_packages(console: Console, *, as_json: bool = False) -> int:
    """Print versions, ranges and what does not fit, with what to install; return 1 if something does not fit.

    With `as_json` each package and each pair that does not fit is a JSON object on a line.
    """
    installed, unfitting = packages(), misfits()
    if as_json:
        console.file.write("".join(json.dumps(asdict(line)) + "\n" for line in (*installed, *unfitting)))
    else:
        print_text(console, Text(f"outdo {__version__}, Python {platform.python_version()}, {platform.platform()}"))
        for package in installed:
            print_text(console, Text(f"  {package.name} {package.version} (outdo needs {package.range})"))
        for misfit in unfitting:
            print_text(console, Text.assemble((f"{misfit.level}: ", COLOURS[misfit.level]), str(misfit)))
    unfit = any(misfit.level != "note" for misfit in unfitting)
    if not as_json and not unfit:
        print_text(console, Text("all packages that outdo uses fit"))
    return int(unfit)
