"""Make the runs that the results lack, one after the other: python -m benchmarks.smollm2 [--only instructions/grpo]

The program can be stopped at any moment, and goes on there when it is started again. `--list` names the next run;
`python -m benchmarks.smollm2.tables` prints the tables of `docs/results.md`.
"""

import argparse
import json
import re
import shutil
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.smollm2 import kinds, run, trl_run
from benchmarks.smollm2.plan import TEACHER, TUNING_SEED, Planned, Result, planned
from outdo.extras.quickstart.smollm2 import model_file
from outdo.models.gguf_folder import converted
from outdo.run.display import Display

RESULTS = Path("docs/results.jsonl")
FOLDER = Path("runs/smollm2")


def results() -> list[dict[str, Any]]:
    """Return the lines of the results."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def missing(only: str) -> Planned | None:
    """Return the next run that the results lack, whose name begins with `only`.

    The beginning ends with a word: `tuning/target` is not that of `tuning/target_essay`.
    """
    done, asked = results(), re.compile(rf"{re.escape(only)}\b")
    names = {each["name"] for each in done}
    return next((each for each in planned(done) if each.name not in names and asked.match(each.name)), None)


def lacking() -> str:
    """Return what the runs need and this machine does not have; an empty text if nothing."""
    if not (FOLDER / "data").is_dir():
        return f"the questions are missing: python examples/smollm2/data.py {FOLDER}/data"
    return "" if find_spec("reasoning_gym") else 'reasoning-gym is missing: pip install "outdo[gym]"'


def line(wanted: Planned, model: Path, threads: int) -> Result:
    """Make a run; return its line of the results."""
    folder, model = FOLDER / wanted.name, run.start(wanted.task, model, FOLDER)
    of_library = run.of_outdo if wanted.library == "outdo" else trl_run.of_trl
    made = of_library(wanted, folder, model, threads)
    found = {
        "name": wanted.name,
        "task": wanted.task,
        "lr": wanted.lr,
        "seed": wanted.seed,
        "settings": wanted.settings,
        **made,
    }
    is_shown = wanted.name.endswith("grpo/0") and not wanted.name.startswith("teachers/")
    if is_shown:
        last = len(made["curve"]["reward"])
        found |= {"answers": {"before": run.answers(folder, 0), "after": run.answers(folder, last)}}
        found |= {"remembered_before": run.remembered(model)}
    if wanted.name == "instructions/grpo/0":
        found |= {"sampled": kinds.sampled(folder)}
    of_first_seed = wanted.name.startswith("teachers/") and wanted.seed in (0, TUNING_SEED)
    if of_first_seed or ("/grpo/" in wanted.name and not wanted.name.startswith(("tuning/", "teachers/"))):
        found |= {"remembered": run.remembered(folder, without=wanted.task)}
    return found


def main() -> None:
    """Make the missing runs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.smollm2")
    parser.add_argument("--only", default="", help="beginning of the names of the runs")
    parser.add_argument("--threads", type=int, default=2, help="threads of each run; two runs with one take less time")
    parser.add_argument("--list", action="store_true", help="print the next missing run, and make none")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if why := lacking():
        sys.exit(why)
    model = converted(model_file(Display()))
    while (wanted := missing(arguments.only)) is not None:
        print(wanted.name, *wanted.settings, flush=True)
        if arguments.list:
            return
        try:
            found = line(wanted, model, arguments.threads)
        except (KeyboardInterrupt, run.InterruptedRunError):
            sys.exit("stopped; the run goes on at the next start")
        except run.FailedRunError as error:
            sys.exit(str(error))
        with RESULTS.open("a") as file:
            file.write(json.dumps(found) + "\n")
        is_kept = wanted.name.endswith("grpo/0") or wanted.name == TEACHER  # its page is shown, or it teaches
        if not is_kept:
            shutil.rmtree(FOLDER / wanted.name)


if __name__ == "__main__":
    main()
