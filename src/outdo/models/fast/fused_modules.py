"""Norms, gated MLPs and rotations of `transformers` models, with less memory and fewer operators.

For the backward pass of an RMSNorm, autograd keeps its input and its normalised input; for that of a gated MLP also
silu(gate(x)), which is as large as the largest hidden state of a layer. Three kinds of modules compute the same here:

    norm       y = w x / √(mean(x²) + ε)                     keeps x
    mlp        y = down(silu(gate(x)) · up(x))               keeps gate(x), up(x) and their product
    attention  y = o(attend(rotate(q(x)), rotate(k(x)), v(x)))   rotates by three operators instead of seven

Attention may normalise its queries and keys, rotate the first part of each head alone, and multiply what it reads by
σ(g) before o, where q makes g too (Qwen3.5).

They read the weights of the modules in whose place they compute, and call their linear layers, whether those are
patched, quantised or have an adapter. A module is found by the names of its parts, whatever its model is called;
`choice.py` compares the model with and without them, and leaves a kind of module alone where it differs, or
where it calls operators whose effect a few tokens may not show (`OtherOperators`).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu
from torch.overrides import TorchFunctionMode

from outdo.models import onednn
from outdo.models.fast.layout import Layout, Rule
from outdo.models.fast.wrapped_forwards import wrapped_forwards

Kind = Literal["norm", "mlp", "attention"]
KINDS: tuple[Kind, ...] = ("norm", "mlp", "attention")
Replaced = tuple[nn.Module, Callable[..., Any]]


class AttentionNames(NamedTuple):
    """How an attention module calls its parts, beside q_proj, k_proj and v_proj."""

    out: str = "o_proj"
    norms: tuple[str, ...] = ()  # of queries, and of keys


class MlpNames(NamedTuple):
    """How a gated MLP calls its linear layers."""

    gate: str
    up: str
    down: str


PROJECTIONS = "q_proj", "k_proj", "v_proj"
ATTENTIONS = (
    AttentionNames(),
    AttentionNames(norms=("q_norm", "k_norm")),
    AttentionNames("out_proj", ("q_layernorm", "k_layernorm")),  # LFM2
)
MLP, MLP_OF_LFM2 = MlpNames("gate_proj", "up_proj", "down_proj"), MlpNames("w1", "w3", "w2")
ACTIVATION = "act_fn"
SILU = ("SiLU", "SiLUActivation")

USUAL = frozenset(
    {
        *("add", "mul", "neg", "dropout"),
        *("view", "reshape", "flatten", "unflatten", "contiguous", "transpose", "permute", "expand"),
        *("squeeze", "unsqueeze", "chunk", "split", "cat", "to", "__get__", "__getitem__"),
        *("silu", "sigmoid"),  # which change every number
    }
)
"""The operators by which gated MLPs and rotations compute the formulas above, beside those of their parts."""


@contextmanager
def fused_modules(model: nn.Module, kinds: Collection[Kind], rules: Sequence[Rule]) -> Iterator[None]:
    """Let the modules of some kinds compute as described above during a `with` block.

    `rules` are those with which the attention modules of the model call attention, in their order.
    """
    replaced = [pair for kind in kinds for pair in modules_of(model, kind, rules)]
    with wrapped_forwards([module for module, _ in replaced], dict(replaced).__getitem__):
        yield


def readers(model: nn.Module, kinds: Collection[Kind]) -> Iterator[tuple[nn.Module, ...]]:
    """Yield the layers of modules of some kinds that read the same input, for `onednn.patched_linears`."""
    for module in model.modules():
        parts: Any = module
        if "attention" in kinds and _attention_names(module):
            yield parts.q_proj, parts.k_proj, parts.v_proj
        elif "mlp" in kinds and (names := _mlp_names(module)):
            yield getattr(module, names.gate), getattr(module, names.up)


def modules_of(model: nn.Module, kind: Kind, rules: Sequence[Rule]) -> list[Replaced]:
    """Return the modules of a kind, each with its other forward pass.

    No attention module is, in a model that calls attention elsewhere too: there is not one rule for each.
    """
    if kind == "attention":
        named = [(module, names) for module in model.modules() if (names := _attention_names(module))]
        signed = _SignedSines()
        pairs = zip(named, rules, strict=True) if len(named) == len(rules) else ()
        return [(module, partial(_attention, module, names, rule, signed)) for (module, names), rule in pairs]
    if kind == "mlp":
        named_mlps = [(module, names) for module in model.modules() if (names := _mlp_names(module))]
        return [(module, partial(_mlp, *(getattr(module, name) for name in names))) for module, names in named_mlps]
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    formulas = [(module, _formula(type(module))) for module in norms]
    return [(module, partial(_norm, module, *formula)) for module, formula in formulas if formula]


class OtherOperators(TorchFunctionMode):
    """During a `with` block of `watching`, finds the kinds of modules that call an operator that is not `USUAL`.

    `clamp` (OLMo, DeepSeek V4) and `floor` (Ministral 3) change nothing as long as values are small and positions near
    the beginning, as they are on the few tokens on which models are compared.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kinds = set[Kind]()
        self._inside: list[Kind | None] = []  # the modules under way; None for one of no kind

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch the modules of a model."""
        hooks = [
            hook
            for module in model.modules()
            for hook in (
                module.register_forward_pre_hook(partial(self._enter, _kind_of(module))),
                module.register_forward_hook(self._leave),
            )
        ]
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is called during a `with` block."""
        self._inside.append(None)
        try:
            yield
        finally:
            self._inside.pop()

    def _enter(self, kind: Kind | None, module: nn.Module, inputs: Any) -> None:
        self._inside.append(kind)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._inside.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = self._inside[-1] if self._inside else None
        if kind is not None and getattr(func, "__name__", "") not in USUAL:
            self.kinds.add(kind)
        return func(*args, **(kwargs or {}))


def _kind_of(module: nn.Module) -> Kind | None:
    return "attention" if _attention_names(module) else "mlp" if _mlp_names(module) else None


def _attention_names(module: nn.Module) -> AttentionNames | None:
    # The sinks of a module are weights of its own, which a rule that was recorded must not keep.
    with_sinks = any(True for _ in module.parameters(recurse=False))
    parts = _parts(module)
    known = (names for names in ATTENTIONS if parts == {*PROJECTIONS, names.out, *names.norms})
    return None if with_sinks else next(known, None)


def _mlp_names(module: nn.Module) -> MlpNames | None:
    parts = _parts(module)
    if parts == {*MLP, ACTIVATION} and type(getattr(module, ACTIVATION)).__name__ in SILU:
        return MLP
    return MLP_OF_LFM2 if parts == {*MLP_OF_LFM2} else None


def _parts(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


@cache
def _formula(kind: type[nn.Module]) -> tuple[str, float] | None:
    """Return the attribute of ε, and what is added to the weight, of a class of norms; None if they compute another."""
    try:
        norm = kind(8)
    except TypeError:
        return None
    epsilon = next((name for name in ("variance_epsilon", "eps") if getattr(norm, name, None) is not None), None)
    if epsilon is None or [name for name, _ in norm.named_parameters()] != ["weight"]:
        return None
    x = torch.arange(16.0).view(2, 8) - 3
    nn.init.uniform_(norm.weight, generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    with torch.no_grad():
        expected = norm(x).double()
        alike = (offset for offset in (0.0, 1.0) if torch.allclose(expected, _norm(norm, epsilon, offset, x).double()))
        return next(((epsilon, offset) for offset in alike), None)


def _norm(module: nn.Module, epsilon: str, offset: float, hidden_states: Tensor) -> Tensor:
    x = hidden_states
    if x.dtype not in (torch.float32, torch.float64):  # classes round such hidden states at places of their own
        return type(module).forward(module, x)
    weight: Any = module.weight + offset if offset else module.weight  # type: ignore[operator]
    if torch.is_grad_enabled():
        return _RMSNorm.apply(x, weight, getattr(module, epsilon))
    return x.mul(_inverse_rms(x, getattr(module, epsilon))).mul_(weight)


def _mlp(gate: nn.Module, up: nn.Module, down: nn.Module, x: Tensor) -> Tensor:
    of_gate, of_up = onednn.together(x, gate, up)
    return down(_SwiGLU.apply(of_gate, of_up) if torch.is_grad_enabled() else silu(of_gate).mul_(of_up))


def _attention(
    module: nn.Module,
    names: AttentionNames,
    rule: Rule,
    signed: "_SignedSines",
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    *,
    layout: Layout,
    **unused: Any,
) -> tuple[Tensor, None]:
    parts: Any = module
    out = getattr(module, names.out)
    cos, sin = signed(*position_embeddings)  # [1, N, 1, r]
    query, key, value = (
        projected.unflatten(-1, (-1, parts.head_dim))  # [1, N, heads, d]
        for projected in onednn.together(hidden_states, parts.q_proj, parts.k_proj, parts.v_proj)
    )
    gate = None
    if query.shape[2] * parts.head_dim == 2 * out.in_features:
        query, gate = query.unflatten(2, (-1, 2)).unbind(3)
    if names.norms:
        query, key = (getattr(module, name)(part) for name, part in zip(names.norms, (query, key), strict=True))
    query, key = _rotated(query, cos, sin), _rotated(key, cos, sin)
    output = layout.attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), rule)
    if gate is not None:
        output = output * gate.sigmoid()
    return out(output.flatten(2)), None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first r numbers of each head, [1, N, heads, d]."""
    rotate, width = _Rotate.apply if torch.is_grad_enabled() else _rotate, cos.shape[-1]
    if width == x.shape[-1]:
        return rotate(x, cos, sin)
    return torch.cat([rotate(x[..., :width], cos, sin), x[..., width:]], -1)


class _SignedSines:
    """The cosines and sines [1, N, 1, r] of a forward pass, the sines of the first half of each head negative.

    They are made once for all layers that get the same.
    """

    def __init__(self) -> None:
        self.of: Tensor | None = None
        self.made: tuple[Tensor, Tensor] | None = None

    def __call__(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """[1, N, r] and [1, N, r] -> [1, N, 1, r] and [1, N, 1, r]."""
        if self.made is None or self.of is not sin:
            first, second = sin.chunk(2, -1)
            self.of, self.made = sin, (cos[..., None, :], torch.cat([-first, second], -1)[..., None, :])
        return self.made


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute x cos + roll(x) sin, where roll exchanges the halves of each head: [1, N, heads, d]."""
    return torch.addcmul(x * cos, _exchanged(x), sin)


def _exchanged(x: Tensor) -> Tensor:
    return x.roll(x.shape[-1] // 2, -1)


def _inverse_rms(x: Tensor, epsilon: float) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # [..., 1], without a copy of x
    return norm.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()


class _RMSNorm(torch.autograd.Function):
    """y = x r w, r = 1 / √(mean(x²) + ε). With n = x r and u = ∂y w: ∂x = r (u - n mean(u n)), ∂w = Σ ∂y n."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        inverse = _inverse_rms(x, epsilon)
        ctx.save_for_backward(x, weight, inverse)
        return x.mul(inverse).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, inverse = ctx.saved_tensors
        normal = x * inverse
        grad_weight = (grad * normal).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        scaled = grad * weight
        mean = (scaled * normal).mean(-1, keepdim=True)
        return scaled.sub_(normal.mul_(mean)).mul_(inverse), grad_weight, None


class _Rotate(torch.autograd.Function):
    """See `_rotate`; ∂x = ∂y cos + roll(∂y sin)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return torch.addcmul(_exchanged(grad * sin), grad, cos), None, None


class _SwiGLU(torch.autograd.Function):
    """y = silu(gate) · up: only the two factors are kept."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), silu(gate).mul_(grad)
