"""The check of shapes that runs in tests: it finds a wrong tensor also after a right one."""

import pytest
import shape_checks
import torch
from jaxtyping import Float
from torch import Tensor


def test_a_wrong_shape_dtype_or_result_is_an_error():
    @shape_checks.check
    def weighted(values: Float[Tensor, "B T"], weights: Float[Tensor, " B"] | None) -> Float[Tensor, " B"]:
        sums = values.sum(1) if weights is None else values.sum(1) * weights
        return sums if len(values) < 4 else values

    values, weights = torch.ones(3, 2), torch.ones(3)
    for _ in range(2):
        assert weighted(values, weights).shape == (3,)
        assert weighted(values, weights=None).shape == (3,)
        for wrong in ((values[0], weights), (values.long(), weights), (values, weights[:2]), (values, 1.0)):
            with pytest.raises(TypeError, match=r"weighted: (values|weights) is .*, expected"):
                weighted(*wrong)
        with pytest.raises(TypeError, match="weighted: return is"):
            weighted(torch.ones(4, 2), torch.ones(4))
