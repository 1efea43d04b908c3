"""Where the time of a run goes: a table from its metrics, and a trace of two steps."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.table import Table
from torch.profiler import profile, schedule

from outdo.config.recipe import Recipe
from outdo.run.display import Display
from outdo.run.folder.run_folder import read_metrics
from outdo.run.interrupt import Interrupted
from outdo.run.watchers import Watcher
from outdo.utils.atomic import make_folder
from outdo.utils.timing import BETWEEN, SPANS, span
from outdo.utils.world import World

TRACE = "profile/trace.json.gz"
ORDER = (*SPANS, "idle", *BETWEEN)


@contextmanager
def profiling(recipe: Recipe, folder: Path, display: Display, world: World) -> Iterator[Watcher]:
    """Trace two steps of a run, and print where the time of all of them went."""
    yield _Profile(folder, display)


class _Profile(Watcher):
    """Traces two steps; prints the times of all steps when these have ended in order, or were stopped."""

    def __init__(self, folder: Path, display: Display) -> None:
        self.folder = folder
        self.display = display

    @contextmanager
    def running(self, after: int) -> Iterator[None]:
        try:
            with _traced(self.folder / TRACE) as self._end_step:
                yield
        except Interrupted:
            _show_profile(self.folder, self.display)
            raise
        _show_profile(self.folder, self.display)

    def done(self) -> None:
        self._end_step()


@contextmanager
def _traced(file: Path) -> Iterator[Callable[[], None]]:
    """Trace two steps of a loop into `file`: the third, when caches are warm, and the fourth.

    Call the function that is yielded at the end of every step. The trace covers this process alone. Perfetto opens it,
    also compressed (`.json.gz`).
    """
    make_folder(file.parent)
    file.unlink(missing_ok=True)
    two_steps = schedule(wait=1, warmup=1, active=2, repeat=1)  # thousands of operations each: a browser can show them

    def write(profiler: profile) -> None:
        if profiler.step_num > 2:  # otherwise the loop ended before the third step
            profiler.export_chrome_trace(str(file))

    with profile(schedule=two_steps, on_trace_ready=write) as profiler:

        def step() -> None:
            # After the last one the trace is written, which takes seconds; no span in the trace may cross a step's end.
            with span("save", shown=False):
                profiler.step()

        yield step


def _show_profile(folder: Path, display: Display) -> None:
    """Print where the time of the steps went, and where the trace is."""
    table, trace = time_table(read_metrics(folder / "metrics.jsonl")), folder / TRACE
    if table:
        display.console.print(table)
    if trace.exists():
        display.say(f"a trace of two steps: {trace}; open it at ui.perfetto.dev")
    else:
        display.say("too few steps for a trace: it starts with the third")


def time_table(lines: Sequence[Mapping[str, float]]) -> Table | None:
    """Return a table of the spans of a step: medians over the lines of `metrics.jsonl`; None if they have no times.

    Shares are of a step's `seconds`; the spans between steps are not part of the 100 %. The median of a span that is
    not in every step is over the steps that have it.
    """
    table = Table("where the step went", title_justify="left", box=None)
    for heading in ("seconds", "share", "steps"):
        table.add_column(heading, justify="right")
    for name in ORDER:
        having = [line for line in lines if f"time/{name}" in line]
        if having:
            seconds = statistics.median(line[f"time/{name}"] for line in having)
            share = statistics.median(line[f"time/{name}"] / line["seconds"] for line in having)
            table.add_row(name, f"{seconds:.4f}", "between" if name in BETWEEN else f"{share:.1%}", str(len(having)))
    if not table.row_count:
        return None
    table.add_row("step", f"{statistics.median(line['seconds'] for line in lines):.4f}", "", str(len(lines)))
    return table
