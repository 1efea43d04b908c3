"""Measure the peak memory of `outdo train` on a real model, beside the estimate of `outdo check`.

    python benchmarks/real_memory.py SmolLM2-135M-Instruct.Q4_1.gguf [--out docs/memory.jsonl]

Six recipes train two steps each, on a processor, in a process of its own whose largest resident memory the system
tells (`ru_maxrss`): all weights, LoRA, LoRA on nf4, long prompts, 32 answers to one question, and PPO with a critic. A
seventh trains a model that is next to nothing: what is left is the memory of the libraries. Each appends a line to a
file; the lines that are there are not measured again. Prints the table.

The copy of the last finished step needs four times its size of free memory. The estimate leaves it out where the check
finds less. Whether the run made it is in the table: other programs may take memory in between.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from outdo.cli.recipe import probe_machine, prompt_renderer
from outdo.config.file import load
from outdo.run.check import cost
from outdo.run.check.preflight import check
from outdo.testing import tiny_model

LORA = 'train.adapter={name = "lora", rank = 16, alpha = 32}'
FEW = ["train.prompts=2", "train.group_size=4", "sampling.max_tokens=24"]
WAYS = {
    "all weights": FEW,
    "LoRA": [*FEW, LORA],
    "LoRA on nf4": [*FEW, LORA, "weights=nf4"],
    "long prompts": [*FEW, "data.path=long.jsonl"],
    "32 answers": ["train.prompts=1", "train.group_size=32", "sampling.max_tokens=32"],
    "critic": [*FEW, "train.objective=ppo"],
}
LIBRARIES = "libraries"
"""The name of a run of a model that is next to nothing."""
SETTINGS = ["data.path=questions.jsonl", "rewards=score.py:score", "steps=2", "device=cpu", "threads=2"]
SCORE = "def score(completion, answer):\n    return (answer in completion) + sum(map(ord, completion)) % 97 / 97\n"
TOPICS = ("bridge", "desert", "river", "garden", "mountain", "letter", "storm", "clock", "window", "harbor", "forest")
WORDS = ("never", "twelve", "before", "only", "first", "during")
NOTES = "These are notes from a walk along the coast, written down by people who saw the same things. " * 18
"""What makes prompts long."""
LONG = 0.01
"""Seconds that a copy takes at least; where none is made, the time of the decision is counted."""
MIB = 2**20


def prepare(folder: Path) -> None:
    """Write questions, long ones, and a reward into a folder."""
    asked = [
        (f'Write one sentence about a {topic}. Use the word "{word}".', word) for topic in TOPICS for word in WORDS
    ]
    for name, before in (("questions", ""), ("long", NOTES)):
        rows = (json.dumps({"prompt": before + question, "answer": word}) for question, word in asked)
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "score.py").write_text(SCORE)
    tiny_model(folder / "tiny")


def measure(model: str, way: str, folder: Path) -> dict[str, Any]:
    """Check and train by a recipe; return estimate and peak in bytes, and whether the last step was copied."""
    model = str(folder / "tiny") if way == LIBRARIES else str(Path(model).absolute())
    settings = [f"model={model}", *SETTINGS, *WAYS.get(way, FEW)]
    os.chdir(folder)
    recipe = load(None, settings)
    report = check(recipe, render=prompt_renderer(recipe), probe=probe_machine)
    if report.errors:
        raise RuntimeError("\n".join(report.errors))
    run = folder / way.replace(" ", "-")
    with tempfile.TemporaryFile() as said:
        command = [sys.executable, "-m", "outdo", "train", *settings, f"run={run}"]
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(said.read().decode())
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "way": way,
        "measured": 1024 * used.ru_maxrss,
        "estimate": cost.peak(report.memory),
        "estimated_copy": cost.COPY in report.memory,
        "made_copy": steps[-1]["time/copy"] > LONG,
        "parts": dict(report.memory),
    }


def table(found: list[dict[str, Any]]) -> str:
    """Return the table of the documentation."""
    lines = ["| | measured | estimate | a copy was made |", "|---|---|---|---|"]
    for each in found:
        peak, estimate = each["measured"] / MIB, each["estimate"] / MIB
        copy = "yes" if each["made_copy"] else "no"
        lines.append(f"| {each['way']} | {peak:,.0f} MiB | {estimate:,.0f} MiB ({estimate / peak - 1:+.0%}) | {copy} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is not measured yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder or a .gguf file")
    parser.add_argument("--out", type=Path, default=Path("memory.jsonl"), help="the file of the lines")
    asked = parser.parse_args()
    out = asked.out.absolute()
    found = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        prepare(folder)
        for way in (*WAYS, LIBRARIES):
            if way not in [each["way"] for each in found]:
                found.append(measure(asked.model, way, folder))
                with out.open("a") as lines:
                    lines.write(json.dumps(found[-1]) + "\n")
    print(table([each for each in found if each["way"] in WAYS]))
    print(f"libraries: {next(each for each in found if each['way'] == LIBRARIES)['measured'] / MIB:,.0f} MiB")


if __name__ == "__main__":
    main()
