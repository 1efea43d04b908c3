"""How the weights in the files of a model differ from those that its configuration requires."""

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedModel

from outdo.models.finite import non_finite_weight
from outdo.models.text_part import left_out
from outdo.utils.text import counted


def weight_faults(
    model: PreTrainedModel, report: Mapping[str, Any], *, new: tuple[str, ...], body: str
) -> Iterator[str]:
    """Yield a sentence for each kind of fault of a model that transformers has loaded, from its `report`.

    Weights whose names begin as in `new` may be missing; only those in `body` may not be too many.
    """
    yield from _differences(report, new=new, body=body, unused=left_out(model))
    yield from _untied(model)
    yield from _not_finite(model)


def _differences(
    report: Mapping[str, Any], *, new: tuple[str, ...], body: str, unused: tuple[str, ...]
) -> Iterator[str]:
    """Yield how the weights in the files differ from those that the config requires: a sentence for each kind.

    Weights whose names begin as in `new` may be missing; only those in `body`, and not `unused`, may not be too many.
    """
    if missing := sorted(key for key in report["missing_keys"] if not key.startswith(new)):
        yield f"its files lack {len(missing)} of the weights that config.json requires, such as {missing[0]}"
    surplus = sorted(key for key in report["unexpected_keys"] if key.startswith(body) and not key.startswith(unused))
    if surplus:
        yield (
            f"its files hold {counted(len(surplus), 'weight')} that config.json has no place for, such as "
            f"{surplus[0]}, and it would be another model without them; give config.json the sizes that the weights "
            "were saved with"
        )
    if mismatched := sorted(report["mismatched_keys"]):
        key, actual, expected = mismatched[0]
        more = f" ({len(mismatched)} such weights)" if len(mismatched) > 1 else ""
        yield f"{key} has shape {tuple(actual)}, and config.json requires {tuple(expected)}{more}"


def _untied(model: PreTrainedModel) -> Iterator[str]:
    """Yield a sentence if weights that the config ties are stored apart, with different values."""
    for one, other in model.get_expanded_tied_weights_keys(all_submodels=False).items():
        if one not in model.all_tied_weights_keys:  # transformers has not tied them
            yield (
                f"{one} and {other} are stored with different values, and config.json ties them; "
                "set tie_word_embeddings to false if both are meant"
            )


def _not_finite(model: PreTrainedModel) -> Iterator[str]:
    """Yield a sentence if a weight is not finite."""
    if fault := non_finite_weight(model):
        yield f"{fault}; the model was saved after it had diverged, or the file is damaged"
