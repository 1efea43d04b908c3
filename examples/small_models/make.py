"""Make the model and the questions of a task: python examples/small_models/make.py TASK [--folder F] [--seed N]

TASK is calculator, guessing or programs. The folder, runs/small_models/TASK, gets the examples of a teacher who makes
mistakes, the questions to train on and the held-out ones, and `warm`: a model of 0.8 million weights, fine-tuned on the
examples.
"""

import argparse
import json
import shutil
from pathlib import Path

import calculator
import guessing
import programs
import torch

from outdo.extras.quickstart.model import build, fine_tune
from outdo.run.display import Display

TASKS = {"calculator": calculator, "guessing": guessing, "programs": programs}

TEMPLATE = Path(__file__).with_name("template.jinja")
"""Names the tools, and writes calls as Hermes and Qwen do."""


def main() -> None:
    """Write the files of a task, and its model unless it is there."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    task, seed = TASKS[arguments.task], arguments.seed
    folder = arguments.folder or Path("runs/small_models", arguments.task)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in task.rows(seed).items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not (folder / "warm").exists():
        torch.set_num_threads(1)
        model = build(folder / "new", seed, tokens=task.TOKENS)
        if "<assistant>" in task.TOKENS:
            shutil.copy(TEMPLATE, model / "chat_template.jinja")
        examples = folder / "demonstrations.jsonl"
        fine_tune(model, examples, seed, Display(), steps=task.FINE_TUNING).rename(folder / "warm")


if __name__ == "__main__":
    main()
