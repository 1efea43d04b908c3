"""Where the steps of a run went: a table of what its metrics say, and a trace of two steps."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.table import Table
from torch.profiler import profile, schedule

from outdo.storage.atomic import make_folder
from outdo.utils.timing import BETWEEN, SPANS, span

ORDER = (*SPANS, "idle", *BETWEEN)


@contextmanager
def traced(file: Path | None) -> Iterator[Callable[[], None]]:
    """Trace two steps of the loop inside into `file`, if there is one: the third, when all is warm, and the fourth.

    What is yielded is to be called at the end of every step. The trace is of this process alone; it opens in Perfetto,
    and a compressed one (`.json.gz`) does as well.
    """
    if file is None:
        yield lambda: None
        return
    make_folder(file.parent)
    file.unlink(missing_ok=True)
    when = schedule(wait=1, warmup=1, active=2, repeat=1)  # a step is thousands of operations: a browser holds them all

    def write(seen: profile) -> None:
        if seen.step_num > 2:  # otherwise the loop ended before there was anything to see
            seen.export_chrome_trace(str(file))

    with profile(schedule=when, on_trace_ready=write) as profiler:

        def step() -> None:
            # After the last one the trace is written, which takes seconds; no block in it may reach over a step's end.
            with span("save", shown=False):
                profiler.step()

        yield step


def where_it_went(lines: Sequence[Mapping[str, float]]) -> Table | None:
    """Seconds and shares of a step's spans, medians over the steps of `metrics.jsonl`; None where it says nothing.

    A share is of a step's `seconds`, so that those of what comes between steps stand beside the 100 %. What does not
    happen in every step is told by the median over the steps in which it did.
    """
    found = Table("where the step went", title_justify="left", box=None)
    for heading in ("seconds", "share", "steps"):
        found.add_column(heading, justify="right")
    for name in ORDER:
        there = [line for line in lines if f"time/{name}" in line]
        if there:
            seconds = statistics.median(line[f"time/{name}"] for line in there)
            share = statistics.median(line[f"time/{name}"] / line["seconds"] for line in there)
            found.add_row(name, f"{seconds:.4f}", "between" if name in BETWEEN else f"{share:.1%}", str(len(there)))
    if not found.row_count:
        return None
    found.add_row("step", f"{statistics.median(line['seconds'] for line in lines):.4f}", "", str(len(lines)))
    return found
