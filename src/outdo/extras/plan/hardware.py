"""Accelerators by name or by numbers: `8xH100`, and `--card memory=141` to change a number."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from outdo.utils.errors import UserError, did_you_mean

TABLE = Path(__file__).with_name("hardware.toml")
UNITS = {
    "peak": 1e12,
    "memory": 2**30,
    "bandwidth": 1e12,
    "link": 1e9,
    "network": 1e9,
    "machine": 1,
    "price": 1,
    "pcie": 1e9,
    "host": 2**30,
    "training": 1,
    "decode": 1,
    "captured": 1,
    "launch": 1e-3,
    "update": 1,
}
"""The numbers of a card, and what one unit of hardware.toml is in FLOP/s, bytes, bytes/s, devices, dollars and seconds.
The last five are what software reaches: see `ENGINES` and timing.Fractions."""

MAIN_MEMORY = {"pcie": 32, "host": 64}
"""The bus to main memory (PCIe 4), and GiB of it for each card, where neither table nor arguments tell."""

SHARES = {"training": 0.33, "decode": 0.475, "captured": 0.268, "launch": 0.885, "update": 0.4}
"""Where hardware.toml has no other, each as fitted in published.toml: training on one H100 in prime-rl, updates of 235
billion weights in verl, and one number for each engine. `decode`: vLLM on an H100, of the roofline. The built-in engine
has never run on a GPU, and takes the numbers of its nearest relatives. `captured`: of the roofline, with steps captured
as CUDA graphs, as continuous batching of transformers reaches. `launch`: milliseconds in which the host starts the
kernels of one layer, without graphs, as in `generate` of transformers."""

LIMIT = 100_000
"""Devices of the largest cluster that is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One accelerator, and how it is connected."""

    name: str
    peak: float  # FLOP/s of dense bf16 products
    memory: float  # bytes
    bandwidth: float  # bytes/s of the memory
    link: float  # bytes/s to the other devices of the machine, in one direction
    network: float  # bytes/s to other machines, in one direction
    machine: int  # devices in a machine, or in one NVLink domain
    price: float  # dollars for an hour of one device
    pcie: float = MAIN_MEMORY["pcie"] * UNITS["pcie"]  # bytes/s between a device and main memory, in one direction
    host: float = MAIN_MEMORY["host"] * UNITS["host"]  # bytes of main memory for each device
    training: float = SHARES["training"]
    decode: float = SHARES["decode"]
    captured: float = SHARES["captured"]
    launch: float = SHARES["launch"] * UNITS["launch"]  # seconds
    update: float = SHARES["update"]

    def reach(self, devices: int) -> float:
        """Return the bytes/s at which each of so many devices exchanges data with the others."""
        return self.link if devices <= self.machine else self.network


@dataclass(frozen=True, slots=True)
class Cluster:
    """A number of equal accelerators."""

    devices: int
    card: Card

    @property
    def machines(self) -> int:
        return -(-self.devices // self.card.machine)


@cache
def known_cards() -> Mapping[str, Mapping[str, Any]]:
    """Return the table of hardware.toml."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def card_named(name: str, numbers: Mapping[str, float] | None = None) -> Card:
    """Return the card of this name, with some of its numbers (in the units of hardware.toml) replaced.

    A card that the table does not have needs all numbers. Raises `UserError` with the nearest name otherwise.
    """
    table, changed = known_cards(), dict(numbers or {})
    names = {known.lower(): known for known in table}
    short = {known.lower().split("-")[0]: known for known in table if known.endswith("80GB")}
    full_name = names.get(name.lower()) or short.get(name.lower())
    values = SHARES | MAIN_MEMORY | (dict(table[full_name]) if full_name else {}) | changed
    missing = [key for key in UNITS if key not in values]
    if missing:
        upper = did_you_mean(name.upper(), list(table))
        raise UserError(
            [
                f"--gpus: unknown card {name!r}{upper}. Known: {', '.join(table)}; for another card give its numbers: "
                f"--card {' --card '.join(f'{key}=...' for key in missing)}"
            ]
        )
    scaled: dict[str, Any] = {key: values[key] * unit for key, unit in UNITS.items()}
    return Card(name=full_name or name, **scaled | {"machine": int(values["machine"])})


def cluster_named(gpus: str, numbers: Sequence[str] = ()) -> Cluster:
    """Return the cluster of `8xH100` with numbers such as `memory=141`. Raises `UserError` with every mistake."""
    mistakes: list[str] = []
    values: dict[str, float] = {}
    for text in numbers:
        key, _, value = text.partition("=")
        number = _positive(value)
        if key not in UNITS:
            mistakes.append(f"--card {text}: unknown number {key!r}{did_you_mean(key, list(UNITS))}")
        elif number is None:
            mistakes.append(f"--card {text}: expected {key}=NUMBER, above 0")
        else:
            values[key] = number
    shape = re.fullmatch(r"(?:(\d+)\s*[xX*]\s*)?([A-Za-z][\w.+-]*)", gpus.strip())
    if shape is None:
        mistakes.append(f"--gpus {gpus}: expected COUNTxCARD, for example 8xH100")
        raise UserError(mistakes)
    devices = int(shape[1] or 1)
    if not 1 <= devices <= LIMIT:
        mistakes.append(f"--gpus {gpus}: expected 1 to {LIMIT:,} devices")
    card = None
    try:
        card = card_named(shape[2], values)
    except UserError as error:
        mistakes += error.problems
    if mistakes or card is None:
        raise UserError(mistakes)
    return Cluster(devices, card)


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None
