"""Print text on a console without rich's markup, and what several commands print: metrics, and how outdo is called."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from outdo.run.folder import run_files
from outdo.utils.text import for_terminal


def program() -> str:
    """Return how to call `outdo` here: by its path if it is not found by its name."""
    called = Path(sys.argv[0])
    return "outdo" if called.name != "outdo" or shutil.which("outdo") else os.path.relpath(called)


def print_line(console: Console, line: str) -> None:
    """Print a line of text as it is, except for control characters: no markup, no highlighting, no line breaks."""
    console.print(for_terminal(line), markup=False, highlight=False, soft_wrap=True)


def print_warning(line: str) -> None:
    """Print a line of text to stderr."""
    print(for_terminal(line), file=sys.stderr)


def print_text(console: Console, text: Text) -> None:
    """Print styled text, wrapped between words on a terminal, and as whole lines elsewhere."""
    console.print(text, soft_wrap=not console.is_terminal)


def metrics_of(run: Path, report: Callable[[str], None]) -> tuple[list[Mapping[str, Any]], int]:
    """Return the metrics of a run, with the evaluation before its first step, and the number of its last step."""
    lines = run_files.MetricsFile(run).read(report)
    last = int(max((line["step"] for line in lines), default=0))
    return run_files.with_initial_evaluation(lines, run_files.table(run, "summary.json", report)), last
