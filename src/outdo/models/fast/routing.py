"""The routers of a mixture-of-experts model: their choices are recorded in sampling, and replayed in training.

A router scores all experts for a token, and k of them compute it. Where sampler and trainer round differently, they
choose different experts for some tokens, and the log-probabilities of these tokens differ by much more than rounding.
Replay (rollout routing replay, R3, arXiv 2510.11370) lets the trainer use the experts of the sampler. The weights of
these experts are computed from the trainer's own scores, so that the gradient reaches the router.

Each router of `transformers` has its own formula. All of them choose by `torch.topk`: a replay lets the router compute
as its authors wrote it, and only replaces what this call returns.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from outdo.models.fast.wrapped_forwards import wrapped_forwards
from outdo.types.rows import UNKNOWN_EXPERT
from outdo.utils.errors import ModelError


class Router(NamedTuple):
    """A module that chooses experts."""

    name: str  # of the module
    call: int  # how many other calls of `topk` its forward pass makes before the one that chooses
    experts: int  # it chooses from
    k: int  # it chooses for each token


class Routers(NamedTuple):
    """All routers of a model, in the order of the forward pass; R of them."""

    routers: tuple[Router, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The smallest dtype that holds the number of every expert, and `UNKNOWN_EXPERT`."""
        return torch.int8 if max(router.experts for router in self.routers) <= 128 else torch.int16

    @contextmanager
    def recorded(self, model: nn.Module) -> Iterator["Recording"]:
        """Record the choices of each forward pass during a `with` block."""
        recording = Recording(self)
        with self._choosing(model, lambda index: _Choice(self.routers[index].call, chosen=recording.of_router(index))):
            yield recording

    @contextmanager
    def replayed(self, model: nn.Module, routes: Tensor) -> Iterator[None]:
        """Replace the choices for N tokens by `routes` [N, R, k], except `UNKNOWN_EXPERT`, during a `with` block."""
        of_router = routes.long().unbind(1)  # each [N, k]
        with self._choosing(model, lambda index: _Choice(self.routers[index].call, given=of_router[index])):
            yield

    def _choosing(self, model: nn.Module, choice: Callable[[int], "_Choice"]) -> Any:
        modules = [model.get_submodule(router.name) for router in self.routers]
        index_of = {id(module): index for index, module in enumerate(modules)}

        def wrap(module: nn.Module) -> Callable[..., Any]:
            forward = module.forward

            @torch.compiler.disable  # the choices of each batch are others
            def choosing(*args: Any, **kwargs: Any) -> Any:
                with choice(index_of[id(module)]):
                    return forward(*args, **kwargs)

            return choosing

        return wrapped_forwards(modules, wrap)


class Recording:
    """The choices of the last forward pass."""

    def __init__(self, routers: Routers) -> None:
        self.dtype = routers.dtype
        self._chosen: list[Tensor | None] = [None] * len(routers.routers)

    def of_router(self, index: int) -> Callable[[Tensor], None]:
        """Return what keeps the choices [N, k] of a router."""

        def keep(indices: Tensor) -> None:
            self._chosen[index] = indices

        return keep

    def last(self) -> Tensor:
        """Return the choices for the N tokens of the last forward pass, [N, R, k]."""
        return torch.stack([chosen for chosen in self._chosen if chosen is not None], 1).to(self.dtype)


class _Choice(TorchFunctionMode):
    """During a `with` block, keeps or replaces what one call of `topk` returns: the one after `call` others."""

    def __init__(
        self, call: int, *, chosen: Callable[[Tensor], None] | None = None, given: Tensor | None = None
    ) -> None:
        super().__init__()
        self.left = call
        self.chosen = chosen
        self.given = given

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _is_topk(func):
            return result
        self.left -= 1
        if self.left != -1:
            return result
        if self.chosen is not None:
            self.chosen(result.indices)
        if self.given is None:
            return result
        indices = self.given.where(self.given != UNKNOWN_EXPERT, result.indices)
        return torch.return_types.topk((_scores(args, kwargs).gather(-1, indices), indices))


@torch.no_grad()
def find_routers(model: nn.Module, run: Callable[[], Tensor]) -> Routers | str:
    """Return the routers of a mixture model, or why their choices cannot be replayed. `run` computes a few tokens.

    It does not guess from names. A router is a module that returns what a call of `topk` in it has chosen; and other
    choices have to change what the model computes, where the model's own have to change no bit.
    """
    try:
        routers, choices, expected = _observed(model, run)
        with routers.replayed(model, choices):
            if not torch.equal(run(), expected):
                return "its routers compute something else when their own choices are given to them"
        others = torch.stack([(choices[:, i] + 1) % router.experts for i, router in enumerate(routers.routers)], 1)
        with routers.replayed(model, others):
            if torch.equal(run(), expected):
                return "its experts do not follow what the routers return"
    except ModelError as error:
        return str(error)
    except Exception as error:  # any error is a reason not to replay
        return f"{type(error).__name__}: {error}"
    return routers


def _observed(model: nn.Module, run: Callable[[], Tensor]) -> tuple[Routers, Tensor, Tensor]:
    """Run the model; return its routers, their choices [N, R, k], and what it computed."""
    observer = _Observer()
    hooks = [module.register_forward_pre_hook(partial(observer.enter, name)) for name, module in model.named_modules()]
    hooks += [module.register_forward_hook(partial(observer.leave, name)) for name, module in model.named_modules()]
    try:
        with observer:
            result = run()
    finally:
        for hook in hooks:
            hook.remove()
    if not observer.found:
        raise ModelError("none of its modules returns which experts it has chosen")
    choices = [indices for _, indices in observer.found.values()]
    return Routers(tuple(router for router, _ in observer.found.values())), torch.stack(choices, 1), result


class _Observer(TorchFunctionMode):
    """During a `with` block, finds the modules that return what a call of `topk` in them has chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, int]] = []  # indices of each call of `topk`, and how many it chose from
        self.entered: dict[str, int] = {}  # the calls before a module
        self.found: dict[str, tuple[Router, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _is_topk(func):
            self.calls.append((result.indices, _scores(args, kwargs).shape[-1]))
        return result

    def enter(self, name: str, module: nn.Module, inputs: Any) -> None:
        """Note how many calls there were before the module `name`."""
        self.entered[name] = len(self.calls)

    def leave(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        """Note the module `name` as a router, if it returns what a call in it has chosen and no module within it does.

        Raises ValueError if it runs twice in a forward pass.
        """
        returned = {id(tensor) for tensor in output} if isinstance(output, tuple) else set[int]()
        returned -= {id(indices) for _, indices in self.found.values()}
        for number, (indices, experts) in enumerate(self.calls[self.entered[name] :]):
            if id(indices) in returned:
                if name in self.found:
                    raise ValueError(f"{name} runs several times in a forward pass")
                self.found[name] = Router(name, number, experts, indices.shape[-1]), indices


def _is_topk(func: Any) -> bool:
    return getattr(func, "__name__", "") == "topk"


def _scores(args: Any, kwargs: Any) -> Tensor:
    """Return what a call of `topk` chooses from."""
    return args[0] if args else kwargs["input"]
