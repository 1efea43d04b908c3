"""Measure the peak memory of training all weights, LoRA and QLoRA, beside the estimate of `outdo check`.

    python benchmarks/memory.py [--hidden 512] [--layers 8] [--answers 8] [--tokens 24]

Each way trains the same new model for two steps on one core, in a process of its own. A step of a tiny model comes
first, so that libraries and their buffers are there; "measured" is the peak after it, less what the process held then.
Files of weights that are mapped into memory are copied, so that they count. Prints a table and one JSON object for each
way.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

import outdo.models.policy
from outdo.cli.main import main as command_line
from outdo.config.file import load
from outdo.models.base_weights import Weights
from outdo.models.loading import load_model, without_bars
from outdo.run.check import cost
from outdo.run.check.preflight import check
from outdo.testing import byte_bpe_tokenizer

LORA = 'train.adapter={name = "lora", rank = 16, alpha = 32}'
WAYS = {
    "full": [],
    "LoRA": [LORA],
    "LoRA on bfloat16": [LORA, "weights=bfloat16"],
    "LoRA on int8": [LORA, "weights=int8"],
    "QLoRA": [LORA, "weights=nf4"],
}
SETTINGS = [
    "data={path = 'questions.jsonl', template = '{prompt}', max_prompt_tokens = 8}",
    "rewards=score.py:score",
    "train.objective={name = 'grpo', beta = 0.0}",
    "train.prompts=2",
    "device=cpu",
    "threads=1",
    "steps=2",
    "eval.every=0",
    "checkpoint.every=2",
    "optim.lr=1e-4",
]
SCORE = "def score(completion):\n    return sum(map(ord, completion)) % 97 / 97\n"
MIB = 2**20


def build(folder: Path, hidden: int, layers: int, vocabulary: int) -> None:
    """Write a new model."""
    tokenizer = byte_bpe_tokenizer([], 264)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=hidden // 8,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with without_bars():
        Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prepare(folder: Path, hidden: int, layers: int) -> None:
    """Write the model, a tiny one, and the task into a folder."""
    build(folder / "model", hidden, layers, 4096)
    build(folder / "tiny", 64, 1, 264)
    rows = (json.dumps({"prompt": f"{n}+{n}=", "answer": str(2 * n)}) for n in range(64))
    (folder / "questions.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "score.py").write_text(SCORE)


def measure(folder: Path, way: str, settings: list[str]) -> dict[str, Any]:
    """Train in a process of its own; return its peak memory, the estimate, and the size of a checkpoint, in bytes."""
    asked = [*SETTINGS, *settings, *WAYS[way]]
    run = folder / way.replace(" ", "-")
    command = [sys.executable, __file__, "--child", str(run), *asked]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    here = Path.cwd()
    os.chdir(folder)
    try:
        report = check(load(None, ["model=model", *asked]))
    finally:
        os.chdir(here)
    saved = next((run / "checkpoints").glob("step_*"))
    return {
        "way": way,
        "measured": json.loads(done.stdout.splitlines()[-1]),
        "estimate": cost.peak(report.memory) - cost.LIBRARY_BYTES,
        "checkpoint": sum(path.stat().st_size for path in saved.rglob("*") if path.is_file()),
        "parts": dict(report.memory),
    }


def child(run: str, settings: list[str]) -> None:
    """Train the tiny model, then the other; print the peak of the memory that the second added."""
    outdo.models.policy.load_model = copied
    train(["model=tiny", f"run={run}-tiny", *settings, "sampling.max_tokens=4"])
    before, peak, ended = in_use(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.is_set():
            peak = max(peak, in_use())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    train(["model=model", f"run={run}", *settings])
    ended.set()
    watcher.join()
    print(peak - before)


def copied(*arguments: Any, weights: Weights = "float32", **settings: Any) -> PreTrainedModel:
    """Load a model; copy the weights that are still in a mapped file, which are those that no conversion has copied."""
    model = load_model(*arguments, weights=weights, **settings)
    if weights == "float32":
        for weight in model.parameters():
            weight.data = weight.data.clone()
    return model


def train(settings: list[str]) -> None:
    """Run `outdo train`."""
    sys.argv = ["outdo", "train", *settings]
    try:
        command_line()
    except SystemExit as ended:
        if ended.code:
            raise


def in_use() -> int:
    """Return the bytes of memory of this process that belong to no file."""
    status = Path("/proc/self/status").read_text()
    return 1024 * sum(int(size) for size in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status))


def main() -> None:
    """Measure every way, and print the table."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--answers", type=int, default=8, help="answers per question, of two questions")
    parser.add_argument("--tokens", type=int, default=24, help="of an answer")
    asked = parser.parse_args()
    settings = [f"train.group_size={asked.answers}", f"sampling.max_tokens={asked.tokens}"]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        prepare(folder, asked.hidden, asked.layers)
        found = [measure(folder, way, settings) for way in WAYS]
    print("| | measured | estimate | checkpoint |\n|---|---|---|---|")
    for each in found:
        peak, estimate, saved = (each[name] / MIB for name in ("measured", "estimate", "checkpoint"))
        print(f"| {each['way']} | {peak:.0f} MiB | {estimate:.0f} MiB ({estimate / peak - 1:+.0%}) | {saved:.0f} MiB |")
    for each in found:
        print(json.dumps(each))


if __name__ == "__main__":
    main()
