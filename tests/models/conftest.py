"""Models that compute in float64 throughout."""

import pytest
import torch
from torch import Tensor


@pytest.fixture
def keep_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models compute norms and softmaxes in float32 whatever their weights are; here in what they were given."""
    to, softmax = Tensor.to, torch.nn.functional.softmax

    def kept(tensor: Tensor, *how: object, **more: object) -> Tensor:
        return to(tensor, *(torch.float64 if each is torch.float32 else each for each in how), **more)

    monkeypatch.setattr(Tensor, "to", kept)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda scores, dim, **_: softmax(scores, dim))
