"""The library of the backward pass is chosen by a measurement, which is made once and kept."""

import json
from pathlib import Path

import pytest
import torch

from outdo.models import onednn
from outdo.models.fast import fastest_products
from outdo.models.fast.fastest_products import fastest_gradients
from outdo.models.onednn import Gradients, current_gradients, gradients_by, linear

needs_onednn = pytest.mark.skipif(not onednn.available(), reason="there is nothing to choose without oneDNN")
MATRICES = [(512, 512), (128, 512), (1024, 512)] * 2


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Number of measurements; oneDNN takes 3 seconds for each product, MKL 1 for inputs and 4 for weights."""
    calls: list[int] = []

    def times(left: torch.Tensor, right: torch.Tensor) -> dict[str, float]:
        calls.append(torch.get_num_threads())
        return {"onednn": 3.0, "mkl": 4.0 if left.stride(0) == 1 else 1.0}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(fastest_products, "_shortest", times)
    return calls


@needs_onednn
def test_the_faster_library_is_chosen_for_each_product_by_the_model_that_computes_it(measured):
    found = fastest_gradients(MATRICES)
    assert found.gradients == Gradients(input="mkl", weight="onednn")
    assert (found.input, found.weight) == (3.0, 0.75)
    assert measured == [1] * 6  # both gradients of three shapes, on one thread


@needs_onednn
def test_a_measurement_is_made_once_for_a_processor_a_torch_and_a_model(measured, monkeypatch):
    first = fastest_gradients(MATRICES)
    assert fastest_gradients(list(reversed(MATRICES))) == first
    assert len(measured) == 6
    kept = json.loads(first.file.read_text())
    assert kept["torch"] == torch.__version__
    assert fastest_gradients([*MATRICES, (512, 512)]).file != first.file
    monkeypatch.setattr(fastest_products, "_processor", lambda: "another")
    assert fastest_gradients(MATRICES).file != first.file
    assert len(measured) == 18


@needs_onednn
def test_a_home_folder_that_cannot_be_written_is_no_error(measured, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = fastest_gradients(MATRICES)
    assert found.gradients == Gradients(input="mkl", weight="onednn")
    assert found.file is None


def test_nothing_is_measured_for_small_matrices_or_without_onednn(measured, monkeypatch):
    assert fastest_gradients([(128, 384)] * 8) is None
    assert fastest_gradients([]) is None
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert fastest_gradients(MATRICES) is None
    assert not measured


@needs_onednn
@pytest.mark.parametrize("libraries", [Gradients(), Gradients("mkl", "mkl"), Gradients("onednn", "mkl")])
def test_each_gradient_is_computed_by_the_library_that_was_current_in_the_forward_pass(libraries, monkeypatch):
    asked: list[tuple[int, ...]] = []
    plain = onednn._by_onednn
    monkeypatch.setattr(onednn, "_by_onednn", lambda x, *how: asked.append(tuple(x.shape)) or plain(x, *how))
    x, weight = torch.randn(7, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    with gradients_by(libraries):
        y = linear(x, weight)
    assert current_gradients() == Gradients()
    del asked[:]
    y.square().sum().backward()
    by_onednn = {"input": (7, 3), "weight": (3, 7)}
    assert asked == [by_onednn[name] for name, library in libraries._asdict().items() if library == "onednn"]
    torch.testing.assert_close(weight.grad, 2 * y.detach().T @ x.detach())
    torch.testing.assert_close(x.grad, 2 * y.detach() @ weight.detach())
