"""Whatever makes a prompt, a request or a batch gives it what the model reads beside tokens, or has a reason not to."""

import ast
from collections.abc import Iterator
from pathlib import Path

import outdo

SOURCE = Path(outdo.__file__).parent
MADE = ("Prompt", "Request", "Batch.of_tokens")
TOKENS_ALONE = {
    "cli/chat.py": "a line that is typed has no row; a run with data.inputs is refused",
    "extras/agents/session.py": "Agent refuses prompts with inputs, as agents send text",
    "extras/explain/explain.py": "made up tokens, and no model",
    "extras/page/compare.py": "a record has the names of inputs alone, and is refused where it has some",
    "extras/record/external.py": "what another trainer has measured; no model computes it again",
    "extras/remote_engines/proof.py": "fixed tokens, which tell one model from another",
    "extras/sft/sft.py": "examples of text; sft has no setting for inputs",
    "models/probe.py": "fixed tokens, on which two forward passes are compared",
    "models/scorer.py": "`Engine.score`, of fixed tokens",
    "rollouts/engines/choose_batching.py": "fixed tokens, on which ways to sample are compared",
    "run/assemble/micro_batch_size.py": "rows whose memory is measured, and of which no number is used",
}
"""Files that make some of them without inputs, each with its reason."""


def without_inputs(file: Path) -> Iterator[str]:
    """Yield what a file makes without inputs, by its line."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in MADE:
            named = {keyword.arg for keyword in node.keywords}
            is_of_starlette = name == "Request" and not named
            if "inputs" not in named and not is_of_starlette:
                yield f"{file.name}:{node.lineno}"


def test_every_place_carries_inputs_or_has_a_reason() -> None:
    files = {str(file.relative_to(SOURCE)): file for file in sorted(SOURCE.rglob("*.py"))}
    assert {name for name, file in files.items() if [*without_inputs(file)]} == TOKENS_ALONE.keys()
