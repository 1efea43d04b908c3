"""Count operator calls and memory of a decoding step and of a training step, on a tiny model.

The counts do not depend on the load of the machine; they may change with the version of torch.
"""

import itertools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.suite.outdo_side import Steps
from benchmarks.suite.setting import Setting, Turn, Turns
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Request
from outdo.utils.rng import Stream


def count(setting: Setting, turns: Turns) -> None:
    """Report the counts in every turn; they do not change."""
    turns.take(lambda: Turn(figures=counts(setting)))


def counts(setting: Setting) -> dict[str, float]:
    """Count operator calls, new tensors and their bytes of a decoding step and of an update, and what is saved for the
    backward pass."""
    steps = Steps(setting)
    batch = next(steps.steps).batch
    length = max(setting.case.answers)
    longer, shorter = (_operations(lambda n=n: _sampled(steps, setting, n)) for n in (length, length - 1))
    saved: list[int] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor.nbytes)
        return tensor

    with saved_tensors_hooks(save, lambda tensor: tensor):
        update = _operations(lambda: steps.policy.update(batch, steps.objective))
    return {
        **{f"decode/{name}": longer[name] - shorter[name] for name in longer},
        **{f"update/{name}": number for name, number in update.items()},
        "update/saved_tensors": len(saved),
        "update/saved_bytes": sum(saved),
    }


class Tally(TorchDispatchMode):
    """Counts the operators that torch runs, including those of a backward pass, and the tensors that they create."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"operations": 0, "new_tensors": 0, "new_bytes": 0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count it."""
        result = func(*args, **(kwargs or {}))
        known = {_storage(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        created = [each for each in tree_leaves(result) if isinstance(each, Tensor) and _storage(each) not in known]
        self.counts["operations"] += 1
        self.counts["new_tensors"] += len(created)
        self.counts["new_bytes"] += sum(_bytes(each) for each in created)
        return result


def _operations(work: Callable[[], object]) -> dict[str, int]:
    with Tally() as tally:
        work()
    return tally.counts


def _storage(tensor: Tensor) -> int:
    return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()  # packed weights have none


def _bytes(tensor: Tensor) -> int:
    return tensor.nbytes if tensor.is_mkldnn else tensor.untyped_storage().nbytes()


def _sampled(steps: Steps, setting: Setting, length: int) -> None:
    """Sample answers of this length to the prompts of the case."""
    steps.engine.lengths = (length,) * setting.case.group
    prompt = tuple(range(2, 2 + setting.case.prompt_tokens))
    streams = itertools.product(range(setting.case.prompts), range(setting.case.group))
    requests = [
        Request(token_ids=prompt, stream=Stream("count", 0, str(number), sample), max_tokens=length)
        for number, sample in streams
    ]
    steps.engine.generate(requests, SamplingParams(max_tokens=length))
