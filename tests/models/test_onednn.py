"""Products by oneDNN are those of torch, differentiable, and a row's bits do not depend on its company."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import linear as torchs_linear

from outdo.models import onednn as products
from outdo.models.onednn import linear, patched_linears, product, together

onednn = pytest.mark.skipif(
    not (products.X86 and torch.backends.mkldnn.is_available()), reason="oneDNN is asked on x86 processors alone"
)
SIDES = st.integers(1, 70)


@pytest.fixture
def asked(monkeypatch):
    """How often oneDNN was asked."""
    calls: list[int] = []
    plain = products._by_onednn
    monkeypatch.setattr(products, "_by_onednn", lambda *how, **more: calls.append(1) or plain(*how, **more))
    return calls


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    k=SIDES,
    n=SIDES,
    bias=st.booleans(),
    x_asks=st.booleans(),
)
def test_a_linear_map_and_its_gradients_equal_torchs(shape, k, n, bias, x_asks):
    torch.manual_seed(len(shape) + k * n)
    x = torch.randn(*shape, k, requires_grad=x_asks)
    inputs = [x, torch.randn(n, k, requires_grad=True), torch.randn(n, requires_grad=True) if bias else None]
    asked = [each for each in inputs if each is not None and each.requires_grad]
    ours, theirs = linear(*inputs), torchs_linear(*inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    by = torch.randn_like(theirs)
    for mine, other in zip(torch.autograd.grad(ours, asked, by), torch.autograd.grad(theirs, asked, by), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_a_model_may_change_the_result_in_place():
    x, weight = torch.randn(2, 3, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    gradients = []
    for compute in (linear, torchs_linear):
        y = compute(x, weight)
        y *= 2
        y += 1
        gradients.append(torch.autograd.grad(y.square().sum(), (x, weight)))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-4)


@onednn
@pytest.mark.parametrize(("k", "n"), [(64, 64), (128, 18), (128, 384), (130, 66), (512, 1024), (1024, 513)])
def test_a_rows_bits_do_not_depend_on_other_rows_or_packing(k, n):
    layer, rows = nn.Linear(k, n, bias=False), torch.randn(300, k)
    with torch.no_grad():
        alone = linear(rows, layer.weight)
        for packed in (False, True):
            with patched_linears(layer, packed=packed):
                for m in (2, 3, 4, 5, 8, 12, 31, 64, 100, 256):
                    assert torch.equal(layer(rows[:m]), alone[:m])
                    assert torch.equal(layer(rows[7 : 7 + m]), alone[7 : 7 + m])


@onednn
def test_onednn_is_used_for_float32_on_a_cpu_alone(asked, monkeypatch):
    single, double = torch.randn(4, 8), torch.randn(4, 8, dtype=torch.float64)
    linear(single, torch.randn(3, 8))
    product(single, torch.randn(8, 3))
    assert len(asked) == 2
    assert torch.equal(product(double, double.T), double @ double.T)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(single, torch.randn(3, 8)).dtype == torch.bfloat16
    linear(torch.randn(0, 8), torch.randn(3, 8))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    linear(single, torch.randn(3, 8))
    assert len(asked) == 2


@onednn
def test_a_models_linear_layers_use_onednn_only_in_the_block(asked):
    class Other(nn.Linear):
        """Not what it seems."""

        def forward(self, input):
            return super().forward(input) + 1

    model = nn.Sequential(nn.Linear(8, 8), Other(8, 8), nn.Linear(8, 8, bias=False))
    x = torch.randn(2, 8)
    outside = model(x)
    assert not asked
    with patched_linears(model):
        with patched_linears(model):
            torch.testing.assert_close(model(x), outside)
        assert len(asked) == 2
        model(x)
    assert len(asked) == 4
    with pytest.raises(KeyError), patched_linears(model):
        raise KeyError
    assert torch.equal(model(x), outside)
    assert not any("forward" in vars(layer) for layer in model)


@onednn
def test_weights_are_packed_once_per_block(monkeypatch):
    layer, x = nn.Linear(8, 4), torch.randn(3, 8)
    with torch.no_grad():
        before = layer(x)
        with patched_linears(layer, packed=True):
            torch.testing.assert_close(layer(x), before)
        layer.weight.mul_(2.0)
        with patched_linears(layer, packed=True):
            torch.testing.assert_close(layer(x), 2 * before - layer.bias)
            assert layer(x[:0]).shape == (0, 4)
    packed = torch.ops.mkldnn._reorder_linear_weight
    asked: list[Tensor] = []
    monkeypatch.setattr(
        torch.ops.mkldnn, "_reorder_linear_weight", lambda weight: asked.append(weight) or packed(weight)
    )
    for room, expected in ((layer.weight.nbytes, 1), (layer.weight.nbytes - 1, 0)):
        monkeypatch.setattr(products, "PACKED_BYTES", room)
        asked.clear()
        with patched_linears(layer, packed=True):
            layer(x)
        assert len(asked) == expected


@onednn
@pytest.mark.parametrize(("biases", "products_made"), [((False,) * 3, 1), ((True,) * 3, 1), ((True, True, False), 3)])
def test_layers_that_read_the_same_are_one_product_with_the_same_result(biases, products_made, asked):
    layers = nn.ModuleList([nn.Linear(64, n, bias=bias) for n, bias in zip((64, 32, 32), biases, strict=True)])
    x = torch.randn(300, 64)
    with torch.no_grad():
        expected = [layer(x) for layer in layers]
        with patched_linears(layers, packed=True, readers=[tuple(layers)]):
            found = together(x, *layers)
            assert len(asked) == products_made
            for m in (1, 4, 31):
                for some, all_rows in zip(together(x[7 : 7 + m], *layers), found, strict=True):
                    assert torch.equal(some, all_rows[7 : 7 + m])
            torch.testing.assert_close(layers[1](x), expected[1])
        assert len(together(x, *layers)) == 3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert not any({"forward", "together"} & set(vars(layer)) for layer in layers)
