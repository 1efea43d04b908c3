"""Build each family of causal language models of transformers small, and write how outdo computes it to a page.

    python benchmarks/families.py                  # all families that `AutoModelForCausalLM` lists
    python benchmarks/families.py qwen3 gpt_oss    # some of them
    python benchmarks/families.py --page           # the page alone, from the rows that were measured

Each family is measured in a process of its own. Its row is written to `docs/model-families.jsonl` as soon as it is
measured; a family whose row is there, of the same version of transformers, is not measured again unless it is named.
"""

import argparse
import json
import os
import resource
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from outdo.models.adapter import adapter_config, attach
from outdo.models.layers import is_mixture
from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.testing import byte_bpe_tokenizer
from outdo.utils.errors import OutdoError

DOCS = Path(__file__).parents[1] / "docs"
ROWS, PAGE = DOCS / "model-families.jsonl", DOCS / "model-families.md"
BEGIN = "<!-- benchmarks/families.py writes what follows -->\n"

VOCABULARY = 264
LARGEST = 20_000_000
"""Weights of a model that counts as small."""

SECONDS = 300
"""Of processor time, for one family."""

SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "attention_hidden_size"), 32),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "ffn_dim", "dim_ff", "ffn_hidden_size"), 64),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "intermediate_size_mlp", "mlp_hidden_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("decoder_layers", "encoder_layers", "num_layers_per_stack"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("head_dim", "dim_head", "global_head_dim", "swa_head_dim", "mamba_head_dim"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank", "mamba_dt_rank", "laurel_rank"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads", "index_n_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "num_expert_group", "topk_group", "n_shared_experts", "o_groups"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("hidden_size_per_layer_input", "mamba_d_state", "state_size", "mamba_d_head"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "context_length"), 512),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "mamba_n_groups"), 8),
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "sliding_window": 8,
    "initializer_range": 0.2,
    "is_decoder": True,
}
"""Numbers of a small model, by the names that configurations have for them."""

ALTERNATIVES: tuple[Mapping[str, Any], ...] = (
    {},
    {"num_key_value_heads": 4, "head_dim": 8},  # as many as of queries
    {"n_groups": 1, "num_heads": 8, "head_dim": 8, "mamba_n_groups": 1},
)
"""Numbers that are tried one after the other beside these."""


def main() -> None:
    """Measure the families that have no row, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="those to measure again; all others keep their rows")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    arguments = parser.parse_args()
    rows = read_rows()
    wanted = arguments.families or [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in rows]
    for family in [] if arguments.page else wanted:
        rows[family] = _measured_apart(family)
        print(json.dumps(rows[family]), flush=True)
        ROWS.write_text("".join(f"{json.dumps(rows[name])}\n" for name in sorted(rows)), encoding="utf-8")
    before = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
    PAGE.write_text(f"{before}{BEGIN}\n{page(rows.values())}", encoding="utf-8")


def read_rows() -> dict[str, dict[str, Any]]:
    """Return the rows that were measured with this version of transformers, by family."""
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    rows = [json.loads(line) for line in lines]
    return {row["family"]: row for row in rows if row["transformers"] == transformers.__version__}


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
    try:
        model = small(family)
    except Exception as error:
        return _row(family, error=f"cannot be built small: {_phrase(error)}")
    try:
        policy = Policy(model, byte_bpe_tokenizer([], VOCABULARY))
        choice = BuiltinEngine(policy).choice
    except OutdoError as error:
        return _row(family, error=f"is refused: {_phrase(error)}")
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


def small(family: str) -> PreTrainedModel:
    """Return a small model of a family, with one layer of each kind. Raises the last error where none can be built."""
    default = CONFIG_MAPPING[family]().get_text_config()
    last: Exception = ValueError("no way to build it")
    for alternative in ALTERNATIVES:
        sizes = {name: number for name, number in {**SIZES, **alternative}.items() if hasattr(default, name)}
        try:
            return _built(family, sizes | _kinds_of_layers(default))
        except Exception as error:  # the next alternative may do
            last = error
    raise last


def _built(family: str, sizes: Mapping[str, Any]) -> PreTrainedModel:
    config = AutoConfig.for_model(family, **sizes, eos_token_id=0, pad_token_id=1, bos_token_id=2)
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    if weights > LARGEST:
        raise ValueError(f"its configuration has other names for some sizes, and {weights / 1e6:.0f} million weights")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model(input_ids=torch.arange(5, 15)[None], use_cache=False)
    return model


def _kinds_of_layers(default: Any) -> dict[str, Any]:
    """Return one layer of each kind, where a configuration names the kinds."""
    kinds = list(dict.fromkeys(getattr(default, "layer_types", None) or []))
    if len(kinds) < 2:
        return {}
    return {"layer_types": kinds, "num_hidden_layers": len(kinds)}


def _lora_fault(model: PreTrainedModel) -> str:
    """Return why LoRA does not attach to a model; empty if it does. The model is changed."""
    try:
        attach(model, adapter_config("lora", r=4))
        model(input_ids=torch.arange(5, 15)[None], use_cache=False)
    except Exception as error:
        return _phrase(error)
    return ""


def _row(family: str, **measured: Any) -> dict[str, Any]:
    return {"family": family, "transformers": transformers.__version__} | measured


def _phrase(error: Exception) -> str:
    """Return the first line of an error, cut after a phrase."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 110 else f"{text[:107]}..."


def is_fast(row: Mapping[str, Any]) -> bool:
    """Return whether a family shares prompts and is sampled by continuous batching."""
    return row.get("training") == "shared" and row.get("sampling") == "continuous batching"


def page(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return what is generated of the page."""
    rows = sorted(rows, key=lambda row: row["family"])
    fast = [row for row in rows if is_fast(row)]
    slower = [row for row in rows if "error" not in row and not is_fast(row)]
    without = [row for row in rows if "error" in row]
    return "\n".join(
        [
            f"With transformers {transformers.__version__}: {len(rows)} families, of the "
            f"{len(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)} that `AutoModelForCausalLM` lists.",
            "",
            f"## On the fast ways: {len(fast)}",
            "",
            f"{', '.join(_marked(row) for row in fast)}.",
            "",
            *_marks(fast),
            f"## On other ways: {len(slower)}",
            "",
            "| family | training | sampling | reason |",
            "|---|---|---|---|",
            *(f"| {_marked(row)} | {row['training']} | {row['sampling']} | {_reason(row)} |" for row in slower),
            "",
            *_marks(slower),
            f"## Not measured or refused: {len(without)}",
            "",
            "| family | |",
            "|---|---|",
            *(f"| {row['family']} | {_cell(row['error'])} |" for row in without),
            "",
        ]
    )


def _marked(row: Mapping[str, Any]) -> str:
    """Return the name of a family, with a mark where experts are not replayed, and where LoRA does not attach."""
    experts = row["experts"] not in ("", "replayed")
    return row["family"] + "¹" * experts + "²" * bool(row["lora"])


def _marks(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what the marks say, once for each reason."""
    for mark, says, column in (("¹", "Routed experts are not replayed", "experts"), ("²", "No LoRA", "lora")):
        marked = [row for row in rows if row[column] not in ("", "replayed")]
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
