"""Find weights that are not finite."""

from torch import nn

from outdo.models.base_weights import is_quantised, scales
from outdo.utils.errors import NonFiniteWeightsError
from outdo.utils.sharded_tensors import own_part


def check_finite(model: nn.Module, name: str, advice: str = "") -> None:
    """Raise `NonFiniteWeightsError` with the name of the model and some advice if one of its weights is not finite.

    Of a model that is divided among replicas, each looks at its part.
    """
    if fault := non_finite_weight(model):
        raise NonFiniteWeightsError("; ".join(filter(None, (f"{name}: {fault}", advice))))


def non_finite_weight(model: nn.Module) -> str:
    """Return the first weight of a model with a number that is not finite, and how many it has; empty if none."""
    for name, weight in model.named_parameters():
        finite = (scales(weight) if is_quantised(weight) else own_part(weight.detach())).isfinite()
        if not finite.all():
            return f"{name} holds {int((~finite).sum()):,} of {finite.numel():,} numbers that are not finite"
    return ""
