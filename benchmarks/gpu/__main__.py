"""Run the rows that are missing, one after the other: make gpu [ARGS="--device cpu replicas"]

The program can be stopped at any moment, and goes on there when it is started again. `runs/gpu.json` holds the finished
rows and the environment; attach it to an issue. Rows that are named run again. The exit status is 1 if a row has
failed, and 2 if there is nothing to run it on.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.bench import Bench, CommandError
from benchmarks.gpu.rows import ROWS, Found, Row
from outdo.models.device import choose_device, describe_hardware
from outdo.run.folder.provenance import describe_environment
from outdo.utils.atomic import write_json_atomically
from outdo.utils.errors import UserError
from outdo.utils.text import first_line

FILE, HOME = Path("runs/gpu.json"), Path("runs/gpu")
SHOWN = 20_000
"""Characters of the output of a failed command that are kept."""
MAY_DIFFER = ("command", "git_commit", "started")
"""What may differ between the starts of a program that goes on."""


def environment(device: str) -> dict[str, Any]:
    """Return what decides the results: the hardware, its driver, and the versions of packages."""
    gpus, hardware = torch.cuda.device_count(), describe_hardware(device)
    found = describe_environment(seed=0, threads=1, device=device, hardware=hardware) | {"gpus": gpus}
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        found["nvidia-smi"] = subprocess.run(asked, capture_output=True, text=True).stdout.splitlines()
    return found


def result(row: Row, bench: Bench) -> dict[str, Any]:
    """Run a row; return its verdict, what it says, its seconds and what it has measured. An error is a failure."""
    start, found, output = time.monotonic(), Found([], {}), ""
    try:
        if reason := next(filter(None, (need(bench) for need in row.needs)), ""):
            return {"verdict": "not applicable", "said": reason}
        found = row.found(bench)
        faults = [said for holds, said in found.held if not holds]
    except CommandError as error:
        faults, output = [error.args[0]], error.args[1][-SHOWN:]
    except Exception as error:  # any error is a failure of this row, and the others run
        faults = [f"{type(error).__name__}: {first_line(error)}"]
    said = "; ".join(faults or [said for _, said in found.held])
    verdict = {"verdict": "fail" if faults else "pass", "said": said, "seconds": round(time.monotonic() - start, 1)}
    return verdict | {"measured": dict(found.measured)} | ({"output": output} if output else {})


def finished(file: Path, here: dict[str, Any]) -> dict[str, Any]:
    """Return the rows that the file holds. Raises `UserError` if they are of another environment."""
    if not file.exists():
        return {}
    content = json.loads(file.read_text())
    fixed = {name: value for name, value in here.items() if name not in MAY_DIFFER}
    if different := [name for name, value in fixed.items() if content["environment"].get(name) != value]:
        why = f"holds rows of another environment ({', '.join(different)} differ)"
        raise UserError([f"{file} {why}: move it away, or name another one with --file"])
    return content["rows"]


def main() -> int:
    """Run the rows that are missing, or those that are named; return the exit status."""
    parser = argparse.ArgumentParser(prog="make gpu", description="Run the rows that are missing.")
    parser.add_argument("rows", nargs="*", help=f"rows to run again: {', '.join(ROWS)}")
    parser.add_argument("--device", default="auto", help="cuda or mps; cpu: a rehearsal of what a processor can run")
    parser.add_argument("--file", type=Path, default=FILE, help="where the results are kept")
    arguments = parser.parse_args()
    if unknown := set(arguments.rows) - set(ROWS):
        parser.error(f"no row {', '.join(sorted(unknown))}; the rows are {', '.join(ROWS)}")
    device, reason = choose_device(arguments.device)
    if device.type == "cpu" and arguments.device == "auto":
        print(f'{reason}: make gpu ARGS="--device cpu" rehearses on the processor what it can run')
        return 2
    here = environment(device.type)
    rows = finished(arguments.file, here)
    wanted = arguments.rows or [name for name in ROWS if rows.get(name, {}).get("verdict") not in ("pass", "fail")]
    print(f"{here['hardware']}, {len(wanted)} of {len(ROWS)} rows to run", flush=True)
    bench = Bench(device.type, torch.cuda.device_count(), HOME)
    for name in wanted:
        rows[name] = result(ROWS[name], bench)
        write_json_atomically(arguments.file, {"environment": here, "rows": rows})
        took = f" ({rows[name]['seconds']:.0f} s)" if "seconds" in rows[name] else ""
        print(f"{rows[name]['verdict']:14}  {name}: {rows[name]['said']}{took}", flush=True)
    verdicts = [row["verdict"] for row in rows.values()]
    print(", ".join(f"{verdicts.count(each)} {each}" for each in ("pass", "fail", "not applicable")), arguments.file)
    return 1 if "fail" in verdicts else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which ends the command that runs
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; it goes on where it was at the next start")
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
