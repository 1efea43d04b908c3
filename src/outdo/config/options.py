"""Pieces and the options they run with, in words: read from their source, without running it."""

from collections.abc import Iterator, Mapping
from typing import Any

from outdo.config.names import (
    ADVANTAGES,
    ALGORITHMS,
    CRITICS,
    DIVERGENCES,
    FORMULA,
    OBJECTIVES,
    PEERS_EPS,
    REWARDS,
    STOPS,
    WITH_REFERENCE,
)
from outdo.config.recipe import Piece, Recipe
from outdo.utils.imports import signature_of


def effective_options(piece: Piece, known: Mapping[str, str]) -> dict[str, Any]:
    """The options a piece runs with: the defaults its source writes as literals, then the recipe's."""
    signature = signature_of(known.get(piece.name, piece.name))
    return {name: signature.defaults.get(name) for name in signature.options} | dict(piece.options)


def needs_reference(recipe: Recipe) -> bool:
    """Whether the recipe's pieces ask for a reference policy, as far as their source tells."""
    beta = effective_options(recipe.train.objective, OBJECTIVES).get("beta", 0.0)
    return beta != 0 or recipe.train.kl_in_reward is not None or recipe.advantage.name in WITH_REFERENCE


def method_in_words(recipe: Recipe) -> list[str]:
    """What a run will do with its answers: each piece with every option it runs with, a line each."""
    train = recipe.train
    pieces: list[tuple[str, Piece | None, Mapping[str, str]]] = [
        ("objective", train.objective, OBJECTIVES),
        ("advantage", recipe.advantage, ADVANTAGES),
        ("kl_in_reward", train.kl_in_reward, DIVERGENCES),
        ("critic", recipe.critic, CRITICS),
        ("stop", train.stop, STOPS),
        ("optimiser", recipe.optim.algorithm, ALGORITHMS),
    ]
    lines = []
    for what, piece, known in pieces:
        if piece is not None:
            options = effective_options(piece, known)
            if "length" in options and options["length"] is None:  # see KNOWN_ELSEWHERE
                options["length"] = recipe.sampling.max_tokens
            if "eps" in options and "eps" not in piece.options and train.compat in PEERS_EPS:
                options["eps"] = PEERS_EPS[train.compat]
            said = ", ".join(f"{name} = {value}" for name, value in options.items() if value is not None)
            lines.append(f"{what}: {piece.name}" + (f" ({said})" if said else ""))
    peer = (
        ""
        if train.compat == "outdo"
        else f", in the conventions of {train.compat} (docs/methods: means, clamps, clips)"
    )
    return [lines[0] + peer, *lines[1:]]


def every_piece() -> Iterator[str]:
    """Every named piece and its options, as `outdo config --pieces` prints them; one without a default is marked."""
    tables = {"train.objective": OBJECTIVES, "train.advantage": ADVANTAGES, "train.kl_in_reward": DIVERGENCES}
    tables |= {f"train.objective.{name}": known for name, known in FORMULA.items()}
    tables |= {"train.critic": CRITICS, "train.stop": STOPS, "optim.algorithm": ALGORITHMS, "rewards": REWARDS}
    for place, known in tables.items():
        yield place
        for name, spec in known.items():
            signature = signature_of(spec)
            options = [f"{each} = {signature.defaults.get(each, '?')}" for each in signature.options]
            yield f"    {name:<22}{', '.join(options)}".rstrip()
