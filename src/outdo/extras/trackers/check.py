"""The trackers that a recipe may name, and their options."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from outdo.config.method_rules import check_name
from outdo.config.names import TRACKERS
from outdo.config.recipe import Piece
from outdo.extras.trackers.base import COMMON
from outdo.extras.trackers.hooks import GIVEN
from outdo.utils.imports import Signature, signature_of
from outdo.utils.options import POSITIVE, Check, is_text, option_mistakes


def tracker_mistakes(pieces: Sequence[Piece]) -> Iterator[str]:
    """Yield what is wrong with the names and options of trackers, without importing a client."""
    names = [piece.name for piece in pieces]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"track: {name} is given twice"
    for piece in pieces:
        if wrong_name := list(check_name("track", piece.name, TRACKERS)):
            yield from wrong_name
            continue
        own, takes = piece.name not in TRACKERS, tracker_options(piece.name)
        checks = {"deadline": POSITIVE} if own else {"deadline": POSITIVE, **_texts(takes)}
        yield from option_mistakes(f"track.{piece.name}", piece.name, piece.options, takes, own=own, checks=checks)


def _texts(takes: Signature) -> dict[str, Check]:
    """Return the checks of the options that have no default to compare with: all of them are texts."""
    return {name: (is_text, "text") for name in takes.options if takes.defaults.get(name) is None}


def tracker_options(name: str) -> Signature:
    """Return what a tracker takes from a recipe: what outdo does not give to its function, and `COMMON`."""
    takes = signature_of(TRACKERS.get(name, name)).without(("run",) if name in TRACKERS else GIVEN)
    return replace(takes, options=(*takes.options, *COMMON), defaults={**takes.defaults, **COMMON})
