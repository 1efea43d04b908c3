"""How these tests run a command, the settings of a run that takes a second, and a model that says what it is told."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from outdo.testing import byte_bpe_tokenizer, tiny_model

VOCABULARY = 264

SMALL = (
    *("steps=2", "rewards=last_number", "train.prompts=2", "train.group_size=2", "sampling.max_tokens=8"),
    *("eval.rows=3", "optim.lr=1e-3", "device=cpu", "threads=1"),
)


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    status: int
    out: str
    error: str


Command = Callable[..., Done]


def outdo_process(*arguments: object, cwd: Path | None = None) -> Done:
    """A command in a process of its own, as a user runs it."""
    command = [sys.executable, "-m", "outdo.cli.main", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "300"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=cwd, env=environment)
    return Done(done.returncode, done.stdout, done.stderr)


def chain_model(folder: Path, says: str, *, after: str, chat: bool = False, ends: bool = True) -> Path:
    """A model that answers `says`, whose characters all differ, to whatever ends in `after`.

    Nothing is attended to: the last token alone decides which is next, with all but certainty. With `ends` False the
    answer begins again where it should end.
    """
    network, _ = tiny_model(vocab=VOCABULARY, hidden=VOCABULARY, layers=1)
    tokenizer = byte_bpe_tokenizer([], VOCABULARY, chat=chat)
    first = tokenizer.encode("<|assistant|>" if chat else after, add_special_tokens=False)[-1]
    said = tokenizer.encode(says, add_special_tokens=False)
    assert len({first, *said}) == 1 + len(said) == 1 + len(says.encode())
    chain = [first, *said, tokenizer.eos_token_id if ends else said[0]]
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        network.get_input_embeddings().weight.copy_(torch.eye(VOCABULARY))
        network.get_output_embeddings().weight.zero_()
        for before, following in itertools.pairwise(chain):
            network.get_output_embeddings().weight[following, before] = 4.0
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
