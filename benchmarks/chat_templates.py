"""Probe the chat templates of models and write what they do to `docs/chat-templates.md`.

    python benchmarks/chat_templates.py             # the table, for the templates that the installed TRL ships

A template is probed as at the start of a run, on a byte-level tokenizer with the end-of-turn tokens of its model.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from outdo.extras.episodes.template import Template
from outdo.testing import byte_bpe_tokenizer
from outdo.utils.errors import ModelError

PAGE = Path(__file__).parents[1] / "docs/chat-templates.md"
BEGIN = "<!-- benchmarks/chat_templates.py writes what follows -->\n"

LABELS = ("prefix", "thinking", "JSON", "same text", "parallel")
"""The names that the page gives to the properties of a template."""

END_TOKENS: Mapping[str, Sequence[str]] = {
    "cohere": ["<|END_OF_TURN_TOKEN|>"],
    "deepseek": ["<｜end▁of▁sentence｜>"],
    "diffusion_gemma": ["<turn|>", "<|tool_response>", "<eos>"],
    "gemma4": ["<turn|>", "<|tool_response>", "<eos>"],
    "gemma": ["<end_of_turn>"],
    "glm": ["<|user|>", "<|observation|>", "<|endoftext|>"],
    "gptoss": ["<|return|>", "<|call|>"],
    "idefics": ["<end_of_utterance>"],
    "llama": ["<|eot_id|>"],
    "llava": ["</s>"],
    "muse": ["<|eot|>"],
    "phi": ["<|end|>"],
    "smolvlm": ["<end_of_utterance>"],
    "": ["<|im_end|>"],
}
"""The tokens that end a turn, by the beginning of a template's name; the first that fits."""

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "description": "One."}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def main() -> None:
    """Write the table into the page."""
    before = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
    PAGE.write_text(f"{before}{BEGIN}\n{tables()}", encoding="utf-8")


def names() -> list[str]:
    """Return the names of TRL's templates of models, without those that TRL changed for training."""
    return sorted(path.stem for path in _folder().glob("*.jinja") if not path.stem.endswith("_training"))


def template_of(name: str, tools: Sequence[Mapping[str, Any]] = ()) -> Template:
    """Return a template of TRL, with tools in every prompt. Raises `ModelError` if outdo refuses it."""
    tokenizer = byte_bpe_tokenizer([])
    ends = next(list(tokens) for beginning, tokens in END_TOKENS.items() if name.startswith(beginning))
    tokenizer.add_special_tokens({"additional_special_tokens": ends})
    tokenizer.eos_token, tokenizer.bos_token = ends[0], "<s>"
    tokenizer.chat_template = (_folder() / f"{name}.jinja").read_text(encoding="utf-8")
    template = Template(tokenizer, end_ids=[tokenizer.get_vocab()[end] for end in ends], tools=tools)
    template.check()
    return template


def tables() -> str:
    """Return the table of the templates that are exact with tools, and that of the others, alike ones in one row."""
    exact: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    for name in names():
        with_tools, without = _probe(name, [TOOL]), _probe(name, [])
        if isinstance(with_tools, Template):
            found = with_tools.properties
            lacks = [label for label, each in zip(LABELS, fields(found), strict=True) if not getattr(found, each.name)]
            exact.setdefault(f"| `{with_tools.call_format}` | {', '.join(lacks)}", []).append(name)
        if not isinstance(without, Template) or not isinstance(with_tools, Template):
            cells = ["exact" if isinstance(each, Template) else each for each in (without, with_tools)]
            refused.setdefault(f"| {' | '.join(cells)}", []).append(name)
    return "\n".join(
        [
            f"## TRL {version('trl')}: exact with tools\n",
            *["| calls | lacks | templates |", "|---|---|---|"],
            *(f"{cells} | {', '.join(alike)} |" for cells, alike in exact.items()),
            "\n## Refused, with tools or without\n",
            *["| without tools | with tools | templates |", "|---|---|---|"],
            *(f"{cells} | {', '.join(alike)} |" for cells, alike in refused.items()),
            "",
        ]
    )


def _probe(name: str, tools: Sequence[Mapping[str, Any]]) -> Template | str:
    """Return a template, or why it is refused."""
    try:
        return template_of(name, tools)
    except ModelError as error:
        reason = str(error).removeprefix("an episode: ").removeprefix("an episode ").partition(";")[0]
        reason = reason.replace("the model's chat template", "the template").partition(" (hermes")[0]
        return reason.replace("|", "\\|")


def _folder() -> Path:
    found = importlib.util.find_spec("trl")
    assert found, "TRL is not installed"
    return Path(str(found.origin)).parent / "chat_templates"


if __name__ == "__main__":
    main()
