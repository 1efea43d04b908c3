"""What has to hold of a run, and of the run that it is compared with; and what a machine has to have."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.bench import Bench, Trained
from outdo.extras.page.bands import read_bands
from outdo.extras.quickstart.smollm2 import model_file
from outdo.models.gguf_folder import converted
from outdo.run.display import Display
from outdo.utils.errors import ModelError
from outdo.utils.text import counted

MISMATCH = "sampling/sampling_logp_difference/max"

Need = Callable[[Bench], str]
"""Returns why a row cannot run on this machine; an empty text if it can."""


class Check(NamedTuple):
    """Something that has to hold of a run, and of the run that it is compared with."""

    text: str
    look: Callable[[Trained, Trained], tuple[bool, str]]
    """Returns whether it holds, and a few words on it."""


def equal_tokens(*steps: int) -> Check:
    """All answers of these steps are equal; by default those of every step."""

    def look(run: Trained, other: Trained) -> tuple[bool, str]:
        for step in steps or range(1, len(other.metrics) + 1):
            pairs = list(zip(run.tokens(step), other.tokens(step), strict=True))
            if apart := sum(one != two for one, two in pairs):
                return False, f"{apart} of {len(pairs)} answers of step {step} have other token_ids"
        return True, "equal token_ids"

    return Check(f"equal `token_ids`{''.join(f' in step {step}' for step in steps)}", look)


def equal_weights() -> Check:
    """The weights after the last step have the same bits."""
    return Check("equal weights", lambda run, other: (run.weights == other.weights, f"weights {run.weights[:8]}"))


def close(metric: str, share: float, *steps: int) -> Check:
    """A metric differs in these steps, by default in every one, by at most a share of itself."""

    def look(run: Trained, other: Trained) -> tuple[bool, str]:
        chosen = steps or range(1, len(other.metrics) + 1)
        pairs = [(run.metrics[step - 1][metric], other.metrics[step - 1][metric]) for step in chosen]
        apart = max(abs(one - two) / max(abs(two), 1e-9) for one, two in pairs)
        return apart <= share, f"{metric} {100 * apart:.1g} % apart"

    return Check(f"`{metric}` within {100 * share:g} %{''.join(f' in step {step}' for step in steps)}", look)


def at_most(metric: str, most: float) -> Check:
    """A metric is at most this in every step."""

    def look(run: Trained, other: Trained) -> tuple[bool, str]:
        found = max(line[metric] for line in run.metrics)
        return found <= most, f"{metric} {found:.2g}"

    return Check(f"`{metric}` at most {most:g}", look)


def printed(line: str) -> Check:
    """The run prints this line. Without a text after the colon: it prints no line that begins so, and no warning."""
    begin, _, text = line.partition(":")

    def look(run: Trained, other: Trained) -> tuple[bool, str]:
        found = [each.removeprefix("warning: ") for each in run.output.splitlines()]
        found = [each for each in found if each.startswith(f"{begin}:")]
        return found == [line] * bool(text), " / ".join(found) or f"no line {begin}"

    return Check(f"the line `{line}`" if text else f"no line `{line}`", look)


def ran_out_of_memory() -> Check:
    """Memory did not suffice for the micro-batches that were asked for, and smaller ones were computed."""

    def look(run: Trained, other: Trained) -> tuple[bool, str]:
        asked, fitting = run.micro_batch_tokens["asked"], run.micro_batch_tokens["fitting"]
        return fitting < asked, f"micro-batches of {fitting:,} tokens of {asked:,}"

    return Check("smaller micro-batches than asked for", look)


def within(file: str) -> Check:
    """The curves of the run are within the bands of a file."""

    def look(run: Trained, other: Trained) -> tuple[bool, str]:
        found = [(band, band.value(run.metrics)) for band in read_bands(Path(file))]
        said = [f"{band.metric} {value or 0:.3g} ({band.low:g} to {band.high:g})" for band, value in found]
        return all(band.holds(value) for band, value in found), ", ".join(said)

    return Check(f"curves within `{file}`", look)


# ------------------------------------------------------------------------------------------- what a machine has to have


def gpus(count: int) -> Need:
    """So many GPUs. A processor stands for any number of devices."""
    return lambda bench: "" if bench.device == "cpu" or bench.gpus >= count else f"needs {counted(count, 'GPU')}"


def package(name: str) -> Need:
    """A package of Python."""
    return lambda bench: "" if find_spec(name) else f"{name} is not installed"


def cuda(bench: Bench) -> str:
    """A GPU with CUDA."""
    return "" if bench.device == "cuda" else "needs CUDA"


def vllm(bench: Bench) -> str:
    """An interpreter with vLLM."""
    bench.names["VLLM"] = os.environ.get("OUTDO_VLLM_PYTHON", "")
    return "" if bench.names["VLLM"] else "OUTDO_VLLM_PYTHON names no Python with vLLM"


def smollm2(bench: Bench) -> str:
    """SmolLM2-135M-Instruct, which is downloaded once, and its questions."""
    try:
        bench.names["SMOLLM2"] = str(converted(model_file(Display())))
    except ModelError as error:
        return str(error)
    bench.run(["examples/smollm2/data.py", str(bench.home / "smollm2")])
    return ""
