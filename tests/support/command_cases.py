"""How these tests run a command, the settings of a run that takes a second, and a model that says what it is told."""

import importlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import constants
from run_cases import PATIENCE, WARM

import outdo.cli.main
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


def outdo_process(*arguments: object) -> Done:
    """A command in a process of its own, with the environment of this one, where torch is loaded already."""
    variables = os.environ | {"COLUMNS": "300"}
    with tempfile.TemporaryDirectory() as folder:
        written = [Path(folder, name) for name in ("out", "error")]
        process = WARM.Process(target=_outdo, args=(list(map(str, arguments)), written, dict(variables)))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode is not None, "still running"
        return Done(process.exitcode, *(path.read_text(encoding="utf-8") for path in written))


def _outdo(arguments: list[str], written: list[Path], variables: Mapping[str, str]) -> None:
    os.environ.update(variables)
    importlib.reload(constants)  # the address of the Hub is read from the environment while this is imported
    for standard, path in enumerate(written, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), standard)
    sys.argv = ["outdo", *arguments]
    outdo.cli.main.main()


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
