"""Compare predictions with published measurements: `outdo plan --validate`.

Two fractions of the roofline are fitted for each card and software, each on one published number. Everything else is
predicted, with the settings that the source publishes.
"""

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from outdo.config.recipe import Recipe
from outdo.extras.plan import memory, timing
from outdo.extras.plan.hardware import SHARES, UNITS, Card, Cluster, card_named
from outdo.extras.plan.layout import ParallelLayout, predict
from outdo.extras.plan.lengths import SPREAD, Lengths
from outdo.extras.plan.shapes import BFLOAT16, Shape, known_shapes
from outdo.extras.plan.timing import Fractions
from outdo.extras.plan.workload import Workload

TABLE = Path(__file__).with_name("published.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One published number beside its prediction."""

    software: str
    card: str
    row: str
    quantity: str  # step, sampling, scoring, training, update: seconds; tokens: a second; memory: GiB of a device
    published: float
    predicted: float
    source: str
    assumed: str  # what the source does not publish
    fitted: bool  # a constant was fitted on this number
    outside: str = ""  # why the model does not cover it

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


@cache
def published() -> Mapping[str, Any]:
    """Return the table of published.toml."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def validate() -> list[Result]:
    """Return every published number with its prediction, in the order of published.toml."""
    results: list[Result] = []
    for software in published()["software"]:
        for row in software["rows"]:
            predicted = _predicted(software, row)
            for quantity, value in row["published"].items():
                results.append(
                    Result(
                        software=software["name"],
                        card=row.get("card", software["card"]),
                        row=row["name"],
                        quantity=quantity,
                        published=value,
                        predicted=predicted[quantity],
                        source=row.get("source", software["source"]),
                        assumed=software["assumed"],
                        fitted=[row["name"], quantity] in software["fitted_on"].values(),
                        outside="" if quantity == "memory" else row.get("outside", ""),
                    )
                )
    return results


def accepted() -> tuple[float, float]:
    """Return the median and the largest error that a test compares with `errors`, so that a plan need not compute."""
    stated = published()["error"]
    return stated["median"], stated["worst"]


def errors(results: Sequence[Result]) -> tuple[float, float]:
    """Return the median and the largest absolute error of what was predicted: neither fitted, nor outside."""
    known = [abs(result.error) for result in results if not result.fitted and not result.outside]
    return statistics.median(known), max(known)


def _predicted(software: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, float]:
    """Return the predictions for a row by quantity."""
    card = card_named(row.get("card", software["card"]))
    shape = known_shapes()[row["work"]["model"]]
    shares = {name: software.get(name, SHARES[name]) for name in ("training", "decode", "update")}
    fractions = Fractions(**shares, launch=software.get("launch", 0.0) * UNITS["launch"])
    kind = row["layout"]["kind"]
    if kind == "decode":
        return {"decode": _decoding(shape, card, row, fractions)}
    if kind == "update":
        return {"update": _update(shape, card, row, fractions)}
    work = _work(row["work"])
    if kind == "trainer":
        return _trainer(shape, card, work, row["layout"], fractions)
    layout = ParallelLayout(**row["layout"])
    devices = layout.trainers if kind == "together" else layout.trainers + layout.samplers
    step = predict(shape, Cluster(devices, card), work, layout, fractions)
    return {name: getattr(step, name) for name in ("step", "sampling", "scoring", "training", "update")}


def _work(row: Mapping[str, Any]) -> Workload:
    renamed = {"prompt": "prompt_tokens", "micro_batch": "micro_batch_tokens"}
    lengths = Lengths(row["mean"], row["limit"], row.get("spread", SPREAD))
    others = {renamed.get(key, key): row[key] for key in row if key not in ("model", "mean", "limit", "spread")}
    return Workload(lengths=lengths, **others)


def _decoding(shape: Shape, card: Card, row: Mapping[str, Any], fractions: Fractions) -> float:
    """Return the tokens a second of an engine on which so many answers run, with their tokens in its cache."""
    work, width = row["work"], row["layout"]["width"]
    step = timing.decode_step(shape, card, width=width, running=work["running"], cached=work["cached"])
    return work["running"] / fractions.decoding(step, shape.layers)


def _update(shape: Shape, card: Card, row: Mapping[str, Any], fractions: Fractions) -> float:
    layout = row["layout"]
    if "rate" in layout:
        card = replace(card, link=layout["rate"] * 1e9, network=layout["rate"] * 1e9)
    devices, bytes_ = layout["trainers"] + layout["samplers"], row["work"].get("bytes", BFLOAT16)
    return timing.update_seconds(shape, card, fractions.update, devices=devices, weight_bytes=bytes_)


def _trainer(
    shape: Shape, card: Card, work: Workload, layout: Mapping[str, Any], fractions: Fractions
) -> dict[str, float]:
    """Return tokens a second and GiB of a trainer without engines, which sends its weights after each step."""
    ranks = timing.Ranks(trainers=layout["trainers"], shards=layout["shards"])
    seconds = timing.training_time(
        shape, card, work, ranks, fractions.training, work.lengths.sample(work.sequences)
    ).training
    seconds += timing.STEP_HOST + timing.update_seconds(shape, card, fractions.update, adapter=work.adapter)
    recipe = Recipe.model_validate({"model": "-", "data": {"path": "-"}})
    model_states = memory.model_states_of(
        shape, recipe, reference=False, critic=False, adapter=work.adapter, frozen=work.frozen_bytes
    )
    divided = {name: round(size / ranks.shards) for name, size in model_states.items()}  # adapters too
    gathered = memory.two_layers(shape) if ranks.shards > 1 else 0
    parts = memory.trainer_memory(shape, work, model_states=divided, gathered=gathered)
    return {"tokens": work.tokens / seconds, "memory": sum(parts.values()) / 2**30}
