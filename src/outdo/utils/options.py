"""Check the name and the options of whatever a recipe, the command line or Python names: one rule for all pieces.

The options are those of the code, read from its signature, and those that outdo itself reads (`checks`).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from outdo.utils.errors import did_you_mean, nearest
from outdo.utils.imports import Signature, signature_of

Check = tuple[Callable[[Any], bool], str]
"""Whether a value suits an option, and what is expected."""

NOTHING: Mapping[str, Any] = MappingProxyType({})

LARGEST = 10**18
"""No option needs a larger number; torch refuses whole ones from 2^63 on, and larger ones overflow in float32."""

SHOWN = 12
"""Options that a message names at most: the engine of vLLM has hundreds."""


def is_number(value: Any) -> bool:
    """Return whether a value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_natural(value: Any, *, least: int = 1) -> bool:
    """Return whether a value is a whole number of `least` or more."""
    return isinstance(value, int) and is_number(value) and value >= least


def is_text(value: Any) -> bool:
    """Return whether a value is text with more than white space in it."""
    return isinstance(value, str) and bool(value.strip())


def is_url(value: Any) -> bool:
    """Return whether a value is the address of a host."""
    return isinstance(value, str) and re.match(r"https?://[^/\s]", value) is not None


ANYTHING: Check = (lambda value: True, "anything")
NATURAL: Check = (is_natural, "a whole number of 1 or more")
POSITIVE: Check = (lambda value: is_number(value) and value > 0, "a number above 0")
TEXT: Check = (lambda value: isinstance(value, str), "text")
BOOLEAN: Check = (lambda value: isinstance(value, bool), "true or false")
TABLE: Check = (lambda value: isinstance(value, Mapping), "a table")
MIB: Check = (lambda value: is_natural(value, least=64), "a whole number of MiB, 64 or more")


def no_such_name(key: str, name: str, known: Sequence[str], *, own: str = "") -> str:
    """Return the sentence for a name that no piece has; `own` is how a piece of the user is named, if it may be."""
    expected = f"; expected {' or '.join(filter(None, [', '.join(known), own]))}"
    return f'{key}: nothing is called "{name}"{did_you_mean(name, known) or expected}'


def option_mistakes(
    key: str,
    name: str,
    options: Mapping[str, Any],
    takes: Signature | None = None,
    *,
    own: bool = False,
    checks: Mapping[str, Check] = NOTHING,
    tables: Mapping[str, str] = NOTHING,
    given: Mapping[str, str] = NOTHING,
    hint: Callable[[str], str | None] = lambda key: None,
) -> Iterator[str]:
    """Yield what is wrong with the options of the piece `name`, which stand at `key`, such as `train.objective`.

    Args:
        takes: the signature of the code. An option has the type of its default, if that is a plain literal.
        own: the code is the user's: its numbers may have any sign, and its lists any length.
        checks: further options, and stricter checks of those of the code.
        tables: options that may be tables, and the code whose parameters are the options in them.
        given: names that only outdo sets, and why.
        hint: returns what to say about an unknown option that is similar to none.
    """
    takes = takes or Signature(spec=name)
    known = list(dict.fromkeys([*takes.options, *checks]))
    for option, value in options.items():
        where = f"{key}.{option}"
        if option in given:
            yield f"{where}: outdo sets it itself: {given[option]}"
        elif option in known:
            default = takes.defaults.get(option)
            yield from _value_mistakes(where, value, checks.get(option), tables.get(option), default, own)
        elif not takes.accepts_any:
            yield f"{where}: unknown option; {_advice(option, name, known, hint(where))}"
    missing = [needed for needed in takes.required if needed in known and needed not in options]
    yield from (f"{key}.{needed}: required by {name}" for needed in missing)


def _value_mistakes(
    where: str, value: Any, check: Check | None, table: str | None, default: Any, own: bool
) -> Iterator[str]:
    if check is not None and not check[0](value):
        yield f"{where}: expected {check[1]}, found {value!r}"
    elif table is not None and isinstance(value, Mapping):
        yield from option_mistakes(where, where.rpartition(".")[2], value, signature_of(table))
    elif check is None and (expected := _expected(value, default, own=own) or _possible(value, own=own)):
        yield f"{where}: expected {expected}, found {value!r}"


def _advice(option: str, name: str, known: Sequence[str], hint: str | None) -> str:
    similar = nearest(option, known)
    if similar is None and hint:
        return hint
    listed = f"{', '.join(known[:SHOWN])}{' ...' if len(known) > SHOWN else ''}" or "no options"
    return f"{f'did you mean {similar}? ' if similar else ''}{name} takes {listed}"


def _expected(value: Any, default: Any, *, own: bool) -> str | None:
    """Return what is expected in place of a value, by its default; None if it suits, or if the default is not plain."""
    match default:
        case bool():
            return None if isinstance(value, bool) else "true or false"
        case str():
            return None if isinstance(value, str) else f"text such as {default!r}"
        case int() | float():
            return _expected_number(value, default, own=own)
        case tuple():
            if not isinstance(value, list | tuple) or not (own or len(value) == len(default) or not default):
                return f"a list such as {list(default)}"
            wrong = (_expected(element, plain, own=own) for element, plain in zip(value, default, strict=False))
            return next(filter(None, wrong), None)
    return None


def _possible(value: Any, *, own: bool) -> str | None:
    """Return what is expected in place of a number that no code of outdo can compute with; None for any other value."""
    if own or not is_number(value):
        return None
    if math.isnan(value):
        return "a number"
    return None if abs(value) <= LARGEST or value in (math.inf, -math.inf) else f"a number of at most {LARGEST:.0e}"


def _expected_number(value: Any, default: float, *, own: bool) -> str | None:
    if not is_number(value):
        return f"a number such as {default}"
    if own:
        return None
    if isinstance(default, int) and isinstance(value, float):
        return f"a whole number such as {default}"
    return None if math.isfinite(value) and value >= min(default, 0) else "a finite number that is not negative"
