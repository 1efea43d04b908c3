"""Measure how long the ways to run the built-in engine take to sample the answers of a step, side by side.

    python benchmarks/engines.py [--rounds 7]

All of them sample the same tokens from an untrained model of about the quickstart's size: 32 questions with 8 answers
of up to 48 tokens. They take turns, so that other work on the machine slows all of them down alike, and the median of
each is printed as a multiple of that of one process. Engines in processes of their own also get new weights in each
round.
"""

import argparse
import os
from statistics import median
from time import perf_counter

os.environ["OMP_NUM_THREADS"] = "1"

from outdo.config.recipe import Piece
from outdo.extras.remote_engines.remote import RemoteEngine
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.run.assemble.engines import open_engine
from outdo.testing import tiny_model
from outdo.types import Request
from outdo.utils.rng import Stream

QUESTIONS, ANSWERS, LONGEST = 32, 8, 48


def main() -> None:
    """Measure all ways in turns; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    policy = Policy(*tiny_model(hidden=128, layers=4))
    ways: dict[str, Engine] = {
        "one process": BuiltinEngine(policy),
        "processes = 1": open_engine(Piece(name="builtin", options={"processes": 1}), policy),
        "processes = 2": open_engine(Piece(name="builtin", options={"processes": 2}), policy),
    }
    seconds = {way: list[float]() for way in ways}
    deliveries = {way: list[dict[str, float]]() for way in ways}
    for number in range(rounds):
        policy.optimiser.steps += 1
        for way, engine in ways.items():
            engine.update_weights(policy)
            seconds[way].append(timed(engine, requests(number)))
            if isinstance(engine, RemoteEngine):
                deliveries[way].append(engine.metrics())
    for engine in ways.values():
        engine.close()
    unit = median(seconds["one process"])
    print(f"{policy.model.num_parameters():,} weights, {rounds} rounds")
    for way, measured in seconds.items():
        line = f"{way:24}{median(measured) / unit:6.2f}"
        for name in ("delivery_seconds", "delivery_bytes", "proof_seconds"):
            if deliveries[way]:
                line += f"  {name} {median(each[f'engine/{name}'] for each in deliveries[way]):,.4f}"
        print(line)


def timed(engine: Engine, asked: list[Request]) -> float:
    """Return the seconds in which an engine answers."""
    start = perf_counter()
    engine.generate(asked, SamplingParams(max_tokens=LONGEST))
    return perf_counter() - start


def requests(step: int) -> list[Request]:
    """Return the requests of a step."""
    return [
        Request(
            token_ids=tuple(range(5, 12 + question)),
            stream=Stream("train", step, str(question), answer),
            max_tokens=LONGEST,
        )
        for question in range(QUESTIONS)
        for answer in range(ANSWERS)
    ]


if __name__ == "__main__":
    main()
