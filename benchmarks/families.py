"""Build each family of causal language models of transformers small, and write how outdo computes it to a page.

    python -m benchmarks.families                  # all families that `AutoModelForCausalLM` lists
    python -m benchmarks.families qwen3 gpt_oss    # some of them
    python -m benchmarks.families --page           # the page alone, from the rows that were measured

Each family is measured in a process of its own, and then by two replicas, which go through all that can be trained.
Its row is written to `docs/model-families.jsonl` as soon as it is measured; a family whose row is there, of the same
version of transformers, is not measured again unless it is named.
"""

import argparse
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.family_models import VOCABULARY, phrase, small
from benchmarks.family_replicas import compared
from outdo.models.adapter import adapter_config, attach
from outdo.models.layers import is_mixture
from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.testing import byte_bpe_tokenizer
from outdo.utils.errors import OutdoError

DOCS = Path(__file__).parents[1] / "docs"
ROWS, PAGE = DOCS / "model-families.jsonl", DOCS / "model-families.md"
BEGIN = "<!-- benchmarks/families.py writes what follows -->\n"

SECONDS = 300
"""Of processor time, for one family."""

NO_TEXT: Mapping[str, str] = {
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), "drafts tokens for another model"),
    **dict.fromkeys(("musicgen", "musicgen_melody"), "reads and writes sound, not text"),
}
"""Families that are listed although they are not language models by themselves."""

MARKS = (
    ("¹", "Routed experts are not replayed", "experts"),
    ("²", "No LoRA", "lora"),
    ("³", "No replicas", "replicas"),
    ("⁴", "Weights are not divided", "divided"),
)
"""What is said of families where a column has a reason: a mark, the words, and the column."""

CLASS = re.compile(r"^is refused: \w+: ")
"""How the reason of a refusal begins, with the class of the model."""


def main() -> None:
    """Measure the families that have no row, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="those to measure again; all others keep their rows")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    arguments = parser.parse_args()
    rows = read_rows()
    wanted = arguments.families or [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in rows]
    for row in [] if arguments.page else _measured(wanted, rows):
        rows[row["family"]] = row
        print(json.dumps(row), flush=True)
        ROWS.write_text("".join(f"{json.dumps(rows[name])}\n" for name in sorted(rows)), encoding="utf-8")
    before = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
    PAGE.write_text(f"{before}{BEGIN}\n{page(rows.values())}", encoding="utf-8")


def _measured(families: Iterable[str], rows: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the row of each family, and those that can be trained once more with what two replicas compute.

    `rows` has those that were yielded before.
    """
    yield from map(_measured_apart, families)
    by_replicas = [name for name, row in rows.items() if "error" not in row and "divided" not in row]
    for family, columns in compared(sorted(by_replicas)):
        yield {**rows[family], **columns}


def read_rows() -> dict[str, dict[str, Any]]:
    """Return the rows that were measured with this version of transformers, by family."""
    return {row["family"]: row for row in all_rows() if row["transformers"] == transformers.__version__}


def all_rows() -> list[dict[str, Any]]:
    """Return the rows that were measured with any version of transformers."""
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    return [json.loads(line) for line in lines]


def _measured_apart(family: str) -> dict[str, Any]:
    """Measure a family in a process that ends with it, also where it needs more time than it may."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        torch.set_num_threads(1)
        os.write(writer, json.dumps(measured(family)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as read:
        written = read.read()
    _, status = os.waitpid(child, 0)
    if written:
        return json.loads(written)
    name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
    took_long = name in ("SIGXCPU", "SIGKILL")  # at the soft limit, and at the hard one
    return _row(family, error=f"takes more than {SECONDS} s to choose a way" if took_long else f"ends with {name}")


def measured(family: str) -> dict[str, Any]:
    """Return the row of a family: how outdo computes and samples a small model of it, or why there is none."""
    if family in NO_TEXT:
        return _row(family, error=NO_TEXT[family])
    try:
        model = small(family)
    except Exception as error:
        return _row(family, error=f"cannot be built small: {phrase(error)}")
    try:
        policy = Policy(model, byte_bpe_tokenizer([], VOCABULARY))
        choice = BuiltinEngine(policy).choice
    except OutdoError as error:
        return _row(family, error=f"is refused: {phrase(error)}")
    except Exception as error:
        return _row(family, error=f"fails: {phrase(error)}")
    forward = policy.forward
    experts = "" if not is_mixture(model) else forward.unreachable_routers or "replayed"
    return _row(
        family,
        training=forward.layout,
        reason=forward.reason,
        sampling="" if choice is None else choice.mode.name,
        faults=[] if choice is None else list(choice.faults),
        experts=experts,
        lora=_lora_fault(model),
    )


def _lora_fault(model: PreTrainedModel) -> str:
    """Return why LoRA does not attach to a model; empty if it does. The model is changed."""
    try:
        attach(model, adapter_config("lora", r=4))
        model(input_ids=torch.arange(5, 15)[None], use_cache=False)
    except Exception as error:
        return phrase(error)
    return ""


def _row(family: str, **measured: Any) -> dict[str, Any]:
    return {"family": family, "transformers": transformers.__version__} | measured


def is_fast(row: Mapping[str, Any]) -> bool:
    """Return whether a family shares prompts and is sampled by continuous batching."""
    return row.get("training") == "shared" and row.get("sampling") == "continuous batching"


def page(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return what is generated of the page."""
    rows = sorted(rows, key=lambda row: row["family"])
    fast = [row for row in rows if is_fast(row)]
    slower = [row for row in rows if "error" not in row and not is_fast(row)]
    without = [row for row in rows if "error" in row]
    trained = [row for row in rows if "divided" in row]
    equal = {column: sum(not row[column] for row in trained) for column in ("replicas", "divided")}
    ways = _alike(slower, lambda row: f"{row['training']} | {row['sampling']} | {_reason(row)}")
    errors = _alike(without, lambda row: _cell(CLASS.sub("is refused: ", row["error"]).partition(" (")[0]))
    return "\n".join(
        [
            f"With transformers {transformers.__version__}: {len(rows)} families, of the "
            f"{len(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)} that `AutoModelForCausalLM` lists. Two replicas compute "
            f"the loss and the gradient of one process for {equal['replicas']} of the {len(trained)} that are not "
            f"refused, with weights divided among them for {equal['divided']}.",
            "",
            f"## On the fast ways: {len(fast)}",
            "",
            f"{', '.join(_marked(row) for row in fast)}.",
            "",
            *_marks(fast),
            f"## On other ways: {len(slower)}",
            "",
            "| families | training | sampling | why not shared |",
            "|---|---|---|---|",
            *(f"| {families} | {cells} |" for cells, families in ways.items()),
            "",
            *_marks(slower),
            f"## Not measured or refused: {len(without)}",
            "",
            "| families | |",
            "|---|---|",
            *(f"| {families} | {cells} |" for cells, families in errors.items()),
            "",
        ]
    )


def _alike(rows: Iterable[Mapping[str, Any]], cells: Callable[[Mapping[str, Any]], str]) -> dict[str, str]:
    """Return the names of the families that have the same cells, by these."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(cells(row), []).append(_marked(row))
    return {alike: ", ".join(families) for alike, families in names.items()}


def _marked(row: Mapping[str, Any]) -> str:
    """Return the name of a family, with the marks of what it cannot do."""
    return row["family"] + "".join(mark for mark, _, column in MARKS if _is_lacking(row, column))


def _is_lacking(row: Mapping[str, Any], column: str) -> bool:
    return row.get(column, "") not in ("", "replayed")


def _marks(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what the marks say, once for each reason."""
    rows = list(rows)
    for mark, says, column in MARKS:
        marked = [row for row in rows if _is_lacking(row, column)]
        reasons = dict.fromkeys(row[column] for row in marked)
        named = (
            f"{_cell(reason)} ({', '.join(row['family'] for row in marked if row[column] == reason)})"
            for reason in reasons
        )
        if marked:
            yield f"{mark} {says}: {'; '.join(named)}."
            yield ""


def _reason(row: Mapping[str, Any]) -> str:
    return _cell(row["reason"] or "; ".join(row["faults"]))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
