"""An engine with a copy of the weights gets truncated importance weights, unless the recipe decides otherwise."""

import pytest

from outdo.config.file import load
from outdo.config.options import describe_method
from outdo.run.assemble.method import objective_of

NEEDED = ["model=m", "data.path=x.jsonl"]
VLLM = 'engine={name = "vllm", python = "python"}'
PROCESSES = 'engine={name = "builtin", processes = 1}'


@pytest.mark.parametrize(
    ("settings", "corrected"),
    [
        ([], False),
        (['engine={name = "builtin", processes = 2}'], False),  # it computes what the trainer would
        ([VLLM], True),
        ([VLLM, "train.objective=dapo"], True),
        ([VLLM, 'train.objective={name = "grpo", correction = "none"}'], False),
        ([PROCESSES], False),  # the same computation as the trainer's
        ([PROCESSES, "train.max_staleness=1"], True),
        ([VLLM, "train.objective=prime_rl"], False),  # its ratio is to the engine's own probabilities
    ],
)
def test_the_correction_is_on_by_default_where_the_engine_is_not_the_trainer(settings, corrected):
    recipe = load(None, [*NEEDED, *settings])
    correction = objective_of(recipe).correction
    assert (correction is not None and "truncate" in correction.__qualname__) == corrected
    assert any(line.startswith("correction: truncate") for line in describe_method(recipe)) == corrected
