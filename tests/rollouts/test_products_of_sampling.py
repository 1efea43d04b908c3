"""The matrix products of sampling are those of training, and find their weights as they read them."""

from collections import Counter
from typing import Any

import pytest
import torch
from engine_cases import fresh, requests
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outdo.models import onednn
from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams


class Conversions(TorchDispatchMode):
    """Counts how often each of some tensors is converted to another dtype."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self.names = {each.data_ptr(): each.shape for each in tensors}
        self.counts: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and args[0].data_ptr() in self.names:
            self.counts[args[0].data_ptr()] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shape", [(32, 264), (128, 512), (896, 4864), (128, 50_000)], ids=str)
def test_products_of_a_multiple_of_four_rows_have_the_same_bits_on_this_machine(shape):
    """The engine's independence of the batch needs this; where it fails, the tests above may fail, too."""
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(n, shape[0], generator=generator) for n in (shape[1], 256))
    whole = onednn.linear(rows, weight)  # as the engine computes it; MKL's own bits depend on the rows on some machines
    for count in (4, 8, 12, 20, 64, 100):
        assert torch.equal(onednn.linear(rows[100 : 100 + count], weight), whole[100 : 100 + count])


def test_the_engine_uses_the_same_matrix_products_as_training(monkeypatch: pytest.MonkeyPatch):
    original, calls = onednn._by_onednn, []
    monkeypatch.setattr(onednn, "_by_onednn", lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs))
    model = fresh()
    for precision, expected in (("float32", onednn.X86), ("bfloat16", False)):
        engine = BuiltinEngine(Policy(model.model, model.tokenizer, precision=precision))
        calls.clear()
        engine.generate(requests(), SamplingParams())
        assert bool(calls) is expected


@pytest.mark.parametrize("attention", ["shared", "padded"])
def test_each_weight_is_converted_once_for_all_tokens_that_are_sampled_in_bfloat16(attention):
    """On a GPU, a conversion in each step reads and writes four times as many bytes as the product."""
    model = fresh()
    engine = BuiltinEngine(Policy(model.model, model.tokenizer, precision="bfloat16", attention=attention))
    weights = [each.weight for each in model.model.modules() if isinstance(each, torch.nn.Linear)]
    with Conversions(weights) as conversions:
        engine.generate(requests(), SamplingParams(max_tokens=20))
    assert set(conversions.counts.values()) == {1}
    assert len(conversions.counts) == len(weights)
