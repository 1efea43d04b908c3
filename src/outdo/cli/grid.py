"""Settings with several values, such as `optim.lr=1e-6,1e-5 seed=0..2`, and all their combinations."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from outdo.utils.errors import UserError

MOST = 1000
"""Combinations of a sweep. More of them are most likely a slip of the keyboard."""

_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")


def split_settings(settings: Sequence[str]) -> tuple[list[str], dict[str, Sequence[str]]]:
    """Return the `key=value` settings with one value as they are, and the values of the others by their keys.

    Values are divided by commas outside of quotes and brackets; `0..2` is 0, 1 and 2.

    Raises: UserError with every setting that is given twice, and every value that is empty, given twice or no range.
    """
    fixed, several, mistakes = [], {}, []
    for setting in settings:
        key, _, written = setting.partition("=")
        values: list[str] = []
        for part in _parts(written):
            values += _expanded(key, part, mistakes)
        if len(values) < 2:
            fixed.append(setting)
            continue
        if "" in values:
            mistakes.append(f"{setting}: expected a value before and after each comma")
        if len(set(values)) < len(values):
            mistakes.append(f"{setting}: a value is given twice")
        several[key.strip()] = values
    keys = [setting.partition("=")[0].strip() for setting in settings]
    mistakes += [f"{key}: given twice" for key in dict.fromkeys(keys) if keys.count(key) > 1]
    if (count := math.prod(map(len, several.values()))) > MOST:
        mistakes.append(f"{count:,} combinations: a sweep has at most {MOST:,}")
    if mistakes:
        raise UserError([f"command line: {mistake}" for mistake in mistakes])
    return fixed, several


def combinations(several: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return each combination of the values, as the value of each key; the last key changes fastest."""
    return [dict(zip(several, values, strict=True)) for values in itertools.product(*several.values())]


def _parts(written: str) -> list[str]:
    """Return what stands between the commas of a value that are outside of quotes and brackets."""
    parts, depth, quote = [""], 0, ""
    for character in written:
        if character == "," and not depth and not quote:
            parts.append("")
            continue
        parts[-1] += character
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
    return [part.strip() for part in parts]


def _expanded(key: str, part: str, mistakes: list[str]) -> Sequence[str]:
    """Return the numbers of a range, or the value itself."""
    found = _RANGE.fullmatch(part)
    if found is None:
        return [part]
    first, last = map(int, found.groups())
    if last < first:
        mistakes.append(f"{key}={part}: expected a range that rises, such as 0..2")
    elif last - first >= MOST:
        mistakes.append(f"{key}={part}: a sweep has at most {MOST:,} combinations")
    else:
        return [str(number) for number in range(first, last + 1)]
    return [part]
