"""What replicas that share sequences keep for the backward pass: `python benchmarks/long_answers.py`.

Groups of 1, 2 and 4 processes compute two answers of 2,000 and 1,500 tokens, by a model with 8 layers of width 256.
Replica 0 prints the bytes that autograd keeps, without the weights (docs/cluster.md, long answers).
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.multiprocessing as processes
from transformers import Qwen3Config, Qwen3ForCausalLM

from outdo.algorithms.vocabulary_sums import detached_entropy
from outdo.extras.replicas.launch import RENDEZVOUS
from outdo.extras.replicas.lockstep import sequence_group
from outdo.extras.replicas.replicas import Replicas, join
from outdo.extras.replicas.ulysses import in_parts
from outdo.models.choose_forward import choose_forward
from outdo.models.scorer import token_scores
from outdo.run.assemble.micro_batch_size import count_saved
from outdo.types import Batch

REPLICAS = 4
LENGTHS = (2000, 1500)
SHAPE = {
    "vocab_size": 264,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}


def main() -> None:
    """Start the replicas, and print a line for each measurement."""
    with tempfile.TemporaryDirectory() as folder:
        processes.start_processes(measure, (folder,), nprocs=REPLICAS)


def measure(rank: int, folder: str) -> None:
    """Measure groups of each size, with and without gradient checkpointing, as replica `rank`."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(REPLICAS), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ[RENDEZVOUS] = Path(folder, "rendezvous").as_uri()
    with join(timeout=600) as replicas:
        for checkpointing in (False, True):
            for count in (1, 2, 4):
                kept = kept_bytes(replicas, count, checkpointing)
                if replicas.first:
                    print(
                        f"{count} replicas, gradient_checkpointing = {checkpointing}: {kept / 1e6:.0f} MB", flush=True
                    )


def kept_bytes(replicas: Replicas, count: int, checkpointing: bool) -> int:
    """Return the bytes that the forward pass keeps in each replica of a group."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE)).eval()
    forward = choose_forward(model, gradient_checkpointing=checkpointing)
    if count > 1:
        forward = in_parts(forward, sequence_group(count, replicas.timeout))
    answers = [tuple(5 + (7 * place) % 200 for place in range(length)) for length in LENGTHS]
    batch = Batch.of_tokens([tuple(range(5, 69))] * len(answers), answers, group=[0] * len(answers))
    with torch.enable_grad(), count_saved(model) as count_of:
        scores = token_scores(forward, batch, {"entropy": detached_entropy})
    del scores
    return count_of.bytes


if __name__ == "__main__":
    main()
