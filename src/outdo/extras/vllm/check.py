"""What a recipe may say about vLLM, which has an environment of its own.

vLLM is never imported here. Its options are read from its source, in the environment that the recipe names.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from outdo.config.engines import OF_COPIES, EngineCheck, folder_mistakes
from outdo.config.names import BUILTIN_ENGINE
from outdo.config.recipe import Recipe
from outdo.extras.vllm.receiver import ENDPOINT
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.http import UNREACHED, ReplyError, send
from outdo.utils.imports import Signature, signature_of
from outdo.utils.options import BOOLEAN, POSITIVE, TEXT, Check, is_url, option_mistakes

NAME = "vllm"
ENGINE_ARGUMENTS = "engine/arg_utils.py:EngineArgs"
"""Where vLLM defines its options, in its package."""

OWN_OPTIONS: Mapping[str, Check] = {
    "python": TEXT,
    "url": (is_url, 'a URL such as "http://host:8000"'),
    "served_model": TEXT,
    "folder": TEXT,
    "timeout": POSITIVE,
    "dtype": TEXT,
    "sleep": BOOLEAN,
    **OF_COPIES,
}
"""The options of the engine that are not vLLM's own."""

SET_BY_OUTDO = {
    "model": "`model` of the recipe",
    "seed": "`seed` of the recipe, and the stream of each request",
    "logprobs_mode": "log-probabilities are at the sampling temperature over the whole vocabulary",
    "max_logprobs": "one log-probability of each token is needed",
    "enable_lora": "`train.adapter`",
    "tokenizer": "the tokenizer of the model",
    "enable_sleep_mode": "`engine.sleep`",
}
"""Options of vLLM that a recipe cannot set, and what decides them."""

GPU_SHARE = 0.92
"""The share of a GPU that vLLM takes unless `gpu_memory_utilization` says otherwise, in version 0.32."""

LOCATION = "import importlib.util as u; s = u.find_spec('vllm'); print(s.origin if s else '')"
ANSWER = 120.0
"""Seconds in which an interpreter must find its vllm."""
REPLY = 10.0
"""Seconds in which a server that runs says whether it gets weights."""

CANNOT_GET = (
    "this server gets no weights but adapters; start it with the options of docs/vllm.md for all weights, train an "
    "adapter (train.adapter), or let outdo start vLLM itself (engine.python)"
)


def options_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the options, without looking at any environment."""
    written = [name for name in ("python", "url") if name in options]
    if len(written) != 1:
        yield (
            'engine: vllm needs either python = "path/to/its/python" or url = "http://host:8000"'
            + ("; set only one of them" if written else "; `make vllm` creates .venv-vllm/bin/python")
        )
    takes = Signature(spec=NAME, accepts_any="url" not in options)  # `machine_mistakes` reads what vLLM takes
    yield from option_mistakes("engine", NAME, options, takes, checks=OWN_OPTIONS, given=SET_BY_OUTDO)
    if "folder" in options and "url" not in options:
        yield "engine.folder: has an effect only with engine.url: a process of this machine shares its memory"
    if "sleep" in options and "python" not in options:
        yield "engine.sleep: has an effect only with engine.python: a server elsewhere has memory of its own"


def recipe_mistakes(recipe: Recipe) -> Iterator[str]:
    """Yield the settings with which vLLM does not report what training needs, or cannot sleep."""
    if recipe.engine.options.get("sleep"):
        if recipe.train.max_staleness:
            yield (
                f"engine.sleep: vLLM samples while the policy trains, because train.max_staleness = "
                f"{recipe.train.max_staleness}; leave one of them out"
            )
        if recipe.device == "cpu":
            yield 'engine.sleep: vLLM sleeps on GPUs only, and device = "cpu"'
    sampling = recipe.sampling
    filters = (
        ("top_p", sampling.top_p, sampling.top_p < 1),
        ("top_k", sampling.top_k, sampling.top_k > 0),
        ("min_p", sampling.min_p, sampling.min_p > 0),
    )
    for name, value, is_set in filters:
        if is_set:
            yield (
                f"sampling.{name} = {value}: vLLM reports log-probabilities after this filter, and "
                f'training needs them over the whole vocabulary; leave it out, or use engine = "{BUILTIN_ENGINE}"'
            )


def machine_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong on this machine: it runs the interpreter that `engine.python` names, to find its vllm."""
    yield from folder_mistakes(options)
    python = options.get("python")
    if not isinstance(python, str):
        return
    try:
        package = _package(str(Path(python).expanduser()))
        signature = signature_of(f"{package / ENGINE_ARGUMENTS.partition(':')[0]}:EngineArgs")
    except UserError as error:
        yield from (f"engine.python: {mistake}" for mistake in error.problems)
        return
    others = {name: value for name, value in options.items() if name not in (*OWN_OPTIONS, *SET_BY_OUTDO)}
    takes = Signature(spec=NAME, options=(*OWN_OPTIONS, *signature.options))  # vLLM itself checks the values
    yield from option_mistakes("engine", NAME, others, takes)


def whole_model_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a server that runs already cannot get the weights of a whole model."""
    url = options.get("url")
    if not isinstance(url, str):
        return
    try:
        reply = send("GET", url.rstrip("/") + ENDPOINT, seconds=REPLY)
    except (*UNREACHED, ReplyError):  # it may be started later
        return
    if reply.status == 404:
        yield f"engine.url: {CANNOT_GET}"


def borrowed_share(options: Mapping[str, Any]) -> float:
    """Return the share of the trainer's device that vLLM takes to sample, and gives back; 0 unless it sleeps."""
    return float(options.get("gpu_memory_utilization", GPU_SHARE)) if options.get("sleep") else 0.0


CHECK = EngineCheck(
    options=options_mistakes,
    recipe=recipe_mistakes,
    machine=machine_mistakes,
    whole_model=whole_model_mistakes,
    borrowed_share=borrowed_share,
)


@cache
def _package(python: str) -> Path:
    """Return the folder of the vllm that an interpreter imports. Raises `UserError` if there is none."""
    if not Path(python).is_file():
        neighbours = [str(path) for path in Path(python).parent.glob("python*")]
        similar = did_you_mean(python, neighbours)
        raise UserError([f"{python}: no such file{similar}; `make vllm` creates an environment that has vLLM"])
    try:
        done = subprocess.run(
            [python, "-I", "-c", LOCATION], capture_output=True, text=True, timeout=ANSWER, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError([f"{python}: cannot be run as Python: {error}"]) from None
    origin = done.stdout.strip()
    if done.returncode != 0:
        raise UserError([f"{python}: cannot be run as Python: {json.dumps(done.stderr.strip()[-200:])}"])
    if not origin:
        raise UserError([f"{python}: this Python has no vllm; `make vllm` creates an environment that has"])
    return Path(origin).parent
