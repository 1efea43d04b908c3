"""Measure the page: the size of its file, and what following a long run costs the server and the browser.

    python benchmarks/page.py [--minutes 10] [--steps 10000]

The runs are made up by the functions of the tests. The first table has the bytes of pages and the CPU seconds that
writing them takes. The second follows a run of 10,000 steps, all recorded, that makes one more step every two seconds:
every minute it prints the resident memory of the server and of all processes of the browser, the heap of the page after
a garbage collection, and the CPU seconds of each per poll. Wall time is not measured. Linux only: it reads /proc.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
import browser as browsers
import run_folders

from outdo.extras.page.html import render_page
from outdo.extras.page.runs import collect_runs
from outdo.extras.record import parquet
from outdo.run.folder.run_folder import RunFolder

STEP_SECONDS = 2
"""A step of the followed run takes so long, as long as the page waits between two polls."""

TICKS = os.sysconf("SC_CLK_TCK")

RUNS: dict[str, Callable[[Path], Path]] = {
    "1,000 steps, three with tokens": run_folders.write_long_run,
    "1,000 steps, all with tokens": lambda folder: write_recorded_run(folder, 1_000),
    "one step of 64 answers of 4,096 tokens": lambda folder: run_folders.write_run(
        folder, steps=1, groups=8, group_size=8, length=4_096, even=True
    ),
    "100 steps of 64 answers of 4,096 tokens": lambda folder: write_recorded_run(folder, 100, shape=(8, 8, 4_096)),
}


# ------------------------------------------------------------------------------------------------------------- runs


def write_recorded_run(folder: Path, steps: int, shape: tuple[int, int, int] = (4, 8, 24)) -> Path:
    """Write a run whose steps are all recorded. Only the first record is made; the others are links to it."""
    run_folders.start_run(folder, steps=steps)
    for step in range(1, steps + 1):
        add_recorded_step(folder, step, steps, shape)
    return folder


def add_recorded_step(folder: Path, step: int, steps: int, shape: tuple[int, int, int] = (4, 8, 24)) -> None:
    """Append a step to a run of `write_recorded_run`."""
    first = parquet.path_of(folder, 1)
    made = shape if step == 1 else None
    run_folders.add_step(folder, step, steps=steps, shape=made, eval_every=100, even=True)
    if step > 1:
        os.link(first, parquet.path_of(folder, step))


# ------------------------------------------------------------------------------------------------------------- sizes


def measure_sizes(parent: Path) -> dict[str, dict[str, float]]:
    """Return the bytes of each page, and the CPU seconds that collecting and writing it takes."""
    results = {}
    for number, (name, write) in enumerate(RUNS.items()):
        folder = write(parent / f"run-{number}")
        before = own_cpu_seconds()
        size = len(render_page(collect_runs([folder])).encode())
        results[name] = {"bytes": size, "cpu_seconds": own_cpu_seconds() - before}
        print(f"{name:42} {size / 1e6:5.2f} MB  {results[name]['cpu_seconds']:5.1f} CPU s", flush=True)
    return results


def own_cpu_seconds() -> float:
    """Return the CPU seconds that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------------------------------------------------- following


def follow(folder: Path, steps: int, minutes: int) -> list[dict[str, float]]:
    """Serve a run of `steps` steps that grows, open its page, and measure every minute."""
    write_recorded_run(folder, steps)
    command = [sys.executable, "-m", "outdo.cli.main", "inspect", str(folder), "--serve"]
    with (
        RunFolder(folder),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server,
    ):
        try:
            with sync_playwright() as playwright:
                return [*follow_page(playwright, folder, steps, minutes, server)]
        finally:
            server.kill()


def follow_page(
    playwright: Any, folder: Path, steps: int, minutes: int, server: subprocess.Popen[str]
) -> Iterator[dict[str, float]]:
    """Open the page in a browser, add a step every few seconds, and yield the measurements of each minute."""
    executable = browsers.chromium(playwright)
    assert executable, browsers.MISSING
    browser = browsers.launch(playwright, executable)
    page = browser.new_page()
    polls: list[str] = []
    page.set_default_timeout(browsers.PATIENCE)
    page.on("response", lambda response: polls.append(response.url) if "/data?" in response.url else None)
    page.goto(address(server))
    browsers.by_test_id(page, "curve").first.wait_for()
    session = page.context.new_cdp_session(page)
    step = steps
    for minute in range(minutes + 1):
        polls.clear()
        before = cpu_seconds(server.pid), browser_cpu_seconds(server.pid)
        for _ in range(60 // STEP_SECONDS if minute else 10):  # the first seconds are those of opening the page
            step += 1
            add_recorded_step(folder, step, steps)
            page.wait_for_timeout(1000 * STEP_SECONDS)
        made = max(1, len(polls))
        result = {
            "minute": minute,
            "polls": len(polls),
            "server_cpu": (cpu_seconds(server.pid) - before[0]) / made,
            "browser_cpu": (browser_cpu_seconds(server.pid) - before[1]) / made,
            "server_mb": resident_mb(server.pid),
            "browser_mb": sum(map(resident_mb, browser_processes(server.pid))),
            "heap_mb": heap_mb(page, session),
        }
        print("  ".join(f"{name} {value:.3g}" for name, value in result.items()), flush=True)
        yield result
    browser.close()


def address(server: subprocess.Popen[str]) -> str:
    """Return the address that the server prints."""
    assert server.stdout
    for line in server.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/\?token=[\w-]+", line):
            return found[0]
    raise SystemExit("the server printed no address")


def heap_mb(page: Page, session: CDPSession) -> float:
    """Return the size of the page's JavaScript heap after a garbage collection."""
    session.send("HeapProfiler.collectGarbage")
    return page.evaluate("() => performance.memory.usedJSHeapSize") / 1e6


# ---------------------------------------------------------------------------------------------------------- processes


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(process: int) -> float:
    """Return the memory of a process that no other process shares, and its share of what others share."""
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1e3 if found else 0.0


def browser_cpu_seconds(server: int) -> float:
    """Return the CPU seconds of all processes of the browser."""
    return sum(map(cpu_seconds, browser_processes(server)))


def browser_processes(server: int) -> list[int]:
    """Return the descendants of this process but the server: those of Playwright and of Chromium."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
    found = [os.getpid()]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process and child != server]
    return found[1:]


def main() -> None:
    """Measure sizes, then follow a run, and print the results as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        sizes = measure_sizes(Path(parent))
        followed = follow(Path(parent) / "followed", arguments.steps, arguments.minutes) if arguments.minutes else []
    print(json.dumps({"sizes": sizes, "followed": followed}))


if __name__ == "__main__":
    main()
