"""`make gpu`: what makes each row fail, how the program goes on, and the rows on a GPU that is not there."""

import contextlib
import io
import itertools
import json
import random
import re
import shutil
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pretended_cuda import Graphs, pretended_gpu

from benchmarks.gpu import __main__ as program
from benchmarks.gpu import bench as benches
from benchmarks.gpu import checks, decoding, limited, page
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import ROWS, Found, Row
from outdo.cli.main import main as outdo
from outdo.extras.page.bands import read_bands
from outdo.models.logprobs import _columns_in_part as COLUMNS
from outdo.rollouts.engines import sequences
from outdo.rollouts.engines.modes import MODES, SamplingChoice
from outdo.rollouts.fast.kv_cache import KVCache
from outdo.rollouts.fast.layer_caches import KeysValues
from outdo.utils.errors import UserError

BAND = Path("benchmarks/gpu/smollm2.band.toml")
SOUND = {"buckets": {"1": "", "2": ""}, "waits": {"1": 0.25, "64": 0.25}, "speeds": {"1": [10.0, 90.0]}}
"""What `decoding` says where nothing is wrong."""


class Stub(Bench):
    """Runs that are as they should be, but for what `spoil` changes of the first one."""

    def __init__(self, row: Row, spoil: Callable[[Any], None] = lambda run: None, *, gpus: int = 3) -> None:
        self.device, self.gpus, self.names = "cuda", gpus, {}
        self.row, self.spoil, self.count = row, spoil, 0

    def train(self, settings: str, **how: Any) -> Any:
        lines = [match[1] for check in self.row.checks if (match := re.fullmatch("the line `(.+)`", check.text))]
        right = {band.metric: (band.low + band.high) / 2 for band in read_bands(BAND)} if how.get("recipe") else {}
        run = SimpleNamespace(
            metrics=[defaultdict(float, right, step=float(step)) for step in range(1, 11)],
            tokens=lambda step: [[step, 5], [6]],
            weights="0123456789",
            micro_batch_tokens={"asked": 64, "fitting": 32},
            output="\n".join(lines),
        )
        self.count += 1
        if self.count == 1:
            self.spoil(run)
        return run

    def run(self, arguments: Sequence[str]) -> str:
        found = json.loads(json.dumps(SOUND))
        self.spoil(found)
        return json.dumps(found)


def fault_of(check: checks.Check) -> Callable[[Any], None]:
    """Return what changes a run so that a check of it does not hold."""

    def spoil(run: Any) -> None:
        text = check.text
        if metric := re.match("`(.+?)` (?:within|at most)", text):
            for line in run.metrics:
                line[metric[1]] += 2.0
        elif text.startswith("equal `token_ids`"):
            run.tokens = lambda step: [[step, 5], [7]]
        elif line := re.fullmatch("no line `(.+)`", text):
            run.output = f"warning: {line[1]} model.generate"
        else:
            run.weights, run.output, run.micro_batch_tokens = "9", "attention: padded", {"asked": 64, "fitting": 64}
            run.metrics = [{"step": float(step)} for step in range(1, 11)]

    return spoil


def verdict(row: Row, bench: Bench) -> str:
    return program.result(replace(row, needs=()), bench)["verdict"]


CASES = [(name, number) for name, row in ROWS.items() for number in range(len(row.checks))]


@pytest.mark.parametrize(("name", "number"), CASES, ids=lambda value: str(value))
def test_a_row_fails_if_one_thing_that_it_looks_at_is_wrong(name: str, number: int):
    row = ROWS[name]
    assert verdict(row, Stub(row)) == "pass"
    alone = replace(row, checks=[row.checks[number]])
    assert verdict(alone, Stub(row, fault_of(row.checks[number]))) == "fail"
    assert verdict(alone, Stub(row, lambda run: run.metrics[1].update({"updates/refused": 1.0}))) == "fail"


@pytest.mark.parametrize(
    "wrong", [{"buckets": {"1": "", "2": "other token_ids"}}, {"waits": {"1": 1.0}}, {"waits": {"1": 0.25, "64": 0.5}}]
)
def test_captured_steps_fail_if_one_differs_or_if_the_host_waits_often_or_for_each_row(wrong: dict[str, Any]):
    row = ROWS["captured"]
    assert verdict(row, Stub(row)) == "pass"
    assert verdict(row, Stub(row, lambda found: found.update(wrong))) == "fail"


def test_a_row_that_a_machine_cannot_run_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    monkeypatch.delenv("OUTDO_VLLM_PYTHON", raising=False)
    found = {name: program.result(row, Stub(row, gpus=1)) for name, row in ROWS.items()}
    reasons = {name: each["said"] for name, each in found.items() if each["verdict"] == "not applicable"}
    assert {reasons[name] for name in ("replicas", "divided", "engine")} == {"needs 2 GPUs"}
    assert reasons["ahead"] == "needs 3 GPUs"
    assert reasons["nf4"] == "peft is not installed"
    assert reasons["vllm"] == "OUTDO_VLLM_PYTHON names no Python with vLLM"
    assert "smollm2" in reasons
    assert "processor" not in reasons


def broken(bench: Bench) -> Found:
    raise ZeroDivisionError("of this row")


def interrupted(bench: Bench) -> Found:
    raise KeyboardInterrupt


def some_rows(patch: pytest.MonkeyPatch, second: Callable[[Bench], Found]) -> list[str]:
    """Let the program have three rows, which are recorded when they run."""
    ran: list[str] = []

    def good(bench: Bench) -> Found:
        ran.append("good")
        return Found([(True, "fine")], {"x": 1.0})

    rows = [Row("first", "", "", look=good), Row("second", "", "", look=second), Row("third", "", "", look=good)]
    patch.setattr(program, "ROWS", {row.name: row for row in rows})
    patch.setattr(program, "Bench", lambda *how: None)
    return ran


def start(patch: pytest.MonkeyPatch, file: Path, *arguments: str) -> int:
    patch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--file", str(file), *arguments])
    return program.main()


def test_a_row_that_raises_is_a_failure_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    some_rows(monkeypatch, broken)
    assert start(monkeypatch, tmp_path / "gpu.json") == 1
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["verdict"] for row in content["rows"].values()] == ["pass", "fail", "pass"]
    assert content["environment"]["device"] == "cpu"
    assert {"torch", "outdo", "hardware"} <= set(content["environment"])
    assert "second: ZeroDivisionError: of this row" in capsys.readouterr().out


def test_the_program_goes_on_where_it_was_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    file = tmp_path / "gpu.json"
    ran = some_rows(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(monkeypatch, file)
    assert len(ran) == 1
    ran = some_rows(monkeypatch, lambda bench: Found([], {}))
    assert start(monkeypatch, file) == 0
    assert len(ran) == 1
    assert start(monkeypatch, file, "first") == 0
    assert len(ran) == 2
    assert start(monkeypatch, tmp_path / "other.json", "third") == 0
    file.write_text(file.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    with pytest.raises(UserError, match="holds rows of another environment \\(device differ"):
        start(monkeypatch, file)


def test_without_a_gpu_it_says_so_and_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["gpu"])
    monkeypatch.setattr(program, "choose_device", lambda name: (program.torch.device("cpu"), "no GPU was found"))
    assert program.main() == 2
    assert capsys.readouterr().out.startswith("no GPU was found")


def test_the_page_has_the_table_of_the_rows():
    text = page.PAGE.read_text()
    assert page.with_table(text, page.RESULTS.read_text()) == text


def test_a_row_that_ran_on_a_device_says_so():
    device = {"environment": {"hardware": "GPU X"}, "rows": {"replicas": {"verdict": "pass"}}}
    lines = page.table([device]).splitlines()
    assert [line for line in lines if "GPU X: pass" in line] == [
        line for line in lines if line.startswith("| `replicas`")
    ]


# ------------------------------------------------------------------------------------------ on a GPU that is not there


def in_this_process(arguments: Sequence[str], seconds: float | None) -> tuple[int, str]:
    """Do what `bench.start` does in this process, on the device that is not there unless a processor is asked for."""
    gpu = contextlib.nullcontext() if "device=cpu" in arguments else pretended_gpu()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", list(arguments[1:]))
        with gpu as graphs, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mains = {"outdo": outdo, limited.__name__: limited.main, decoding.__name__: lambda: decode(patch, graphs)}
            try:
                mains[arguments[1]]()
            except SystemExit as end:
                return int(end.code or 0), said.getvalue()
    return 0, said.getvalue()


def decode(patch: pytest.MonkeyPatch, graphs: Graphs) -> None:
    """Print what `decoding` measures of few rows. Its waits are those that the device counts."""

    @contextlib.contextmanager
    def waits() -> Iterator[list[Any]]:
        found, before = list[Any](), graphs.waits.total()
        yield found
        found += [None] * (graphs.waits.total() - before)

    patch.setattr(decoding, "host_waits", waits)
    patch.setattr(decoding, "CAPTURES", {"cuda": graphs})
    patch.setattr(decoding, "ROWS", (1, 4))
    print(json.dumps(decoding.measured("cuda", 2, 9)))


SMALLER = {
    "memory": {
        "settings": "steps=1 train.prompts=2 sampling.max_tokens=8 train.micro_batch_tokens=1000000",
        "beside": "steps=1 train.prompts=2 sampling.max_tokens=8",
    },
    "vocabulary": {"settings": "model=HOME/wide steps=1", "beside": "model=HOME/wide steps=1 device=cpu"},
}
"""Rows that are too large for a processor, and their settings here."""

NO_KERNELS = ("flex_attention", "adamw8bit", "int8", "nf4")
"""Rows whose kernels the device that is not there does not have."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models and the data."""
    folder = tmp_path_factory.mktemp("gpu") / "home"
    benches.write_home(folder)
    return folder


@pytest.fixture
def gpu(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """One GPU that is not there."""
    monkeypatch.setattr(benches, "start", in_this_process)
    monkeypatch.setattr(benches, "write_home", lambda folder: shutil.copytree(home, folder))
    return Bench("cuda", 1, tmp_path / "bench")


def on(bench: Bench, name: str) -> dict[str, Any]:
    return program.result(replace(ROWS[name], **SMALLER.get(name, {})), bench)


def test_captured_steps_pass_on_a_gpu_that_is_not_there(gpu: Bench):
    assert on(gpu, "captured")["verdict"] == "pass"


@pytest.mark.release
def test_every_row_runs_on_a_gpu_that_is_not_there(gpu: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OUTDO_VLLM_PYTHON", raising=False)
    found = {name: on(gpu, name) for name in ROWS if name != "smollm2"}
    for name, each in found.items():
        print(name, each["verdict"], each["said"])
    assert {name for name, each in found.items() if each["verdict"] == "fail"} == set(NO_KERNELS)
    here = {"flash_attention", "vllm", "vllm_sleep"}
    assert {name for name, each in found.items() if each["said"].startswith("needs")} | here == {
        name for name, each in found.items() if each["verdict"] == "not applicable"
    }


def other_products(share: Iterator[float]) -> Callable[..., Any]:
    return lambda func, args, kwargs: func(*args, **kwargs) * (1 + next(share))


def rounding() -> Iterator[float]:
    """Shares that never repeat, so that no number of products makes two runs equal."""
    numbers = random.Random(1)
    while True:
        yield numbers.uniform(0, 2e-6)


def worse_logprobs(logits: Any, numbers: Any, sampling: Any) -> Any:
    tokens, logprobs = sequences.sample_tokens(logits, numbers, sampling)
    return tokens, logprobs - 1


def reads_by_the_host(logits: Any, numbers: Any, sampling: Any) -> Any:
    tokens, logprobs = sequences.sample_tokens(logits, numbers, sampling)
    assert tokens.tolist()
    return tokens, logprobs


def no_keys(cache: Any, row: int) -> Any:
    return [KeysValues(keys * 0, values) for keys, values in STATES_OF(cache, row)]


STATES_OF = KVCache.states_of
NO_PROBE = {"outdo.rollouts.engines.builtin.choose_mode": lambda policy: SamplingChoice(MODES[0])}
WORSE = {"outdo.rollouts.fast.device_steps.sample_tokens": worse_logprobs}
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a device that multiplies wrongly": (
        "processor",
        {"pretended_cuda._in_float64": other_products(itertools.repeat(0.01))},
    ),
    "a device that is not deterministic": (
        "deterministic",
        {"pretended_cuda._in_float64": other_products(rounding())},
    ),
    "wrong log-probabilities that a probe finds": ("sampling", WORSE),
    "wrong log-probabilities that no probe finds": ("bfloat16", NO_PROBE | WORSE),
    "the same of an adapter": ("adapter", NO_PROBE | WORSE),
    "graphs that compute nothing": ("captured", {"pretended_cuda.Graphs.__call__": lambda self, step: lambda: None}),
    "a step that the host reads": (
        "captured",
        {"outdo.rollouts.fast.device_steps.sample_tokens": reads_by_the_host},
    ),
    "a cache of episodes that loses keys": (
        "episodes",
        {"outdo.rollouts.fast.kv_cache.KVCache.states_of": no_keys},
    ),
    "a model that is computed in the padded way": (
        "shared",
        {"outdo.models.fast.choice._other_connection": lambda shared, batch: "something else"},
    ),
    "a block of the vocabulary that is left out": (
        "vocabulary",
        {
            "outdo.models.logprobs._columns_in_part": lambda token_ids, start, width: COLUMNS(
                token_ids, start, width // 2
            )
        },
    ),
    "a device that does not know its memory": (
        "micro_batches",
        {"outdo.run.assemble.micro_batch_size.free_memory": None},
    ),
    "an error that is not recognised": ("memory", {"outdo.models.scorer.is_out_of_memory": lambda error: False}),
    "an optimiser that forgets": (
        "resume",
        {"outdo.models.optimiser.Optimiser.load_state": lambda self, state: None},
    ),
}
"""What is taken out, or put wrong, in outdo or in the device, and the row that has to fail then."""


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=[pytest.mark.release] if "captured" not in FAULTS[each] else []) for each in FAULTS],
)
def test_a_row_fails_where_its_guard_is_taken_out(fault: str, gpu: Bench, monkeypatch: pytest.MonkeyPatch):
    name, changes = FAULTS[fault]
    for target, change in changes.items():
        monkeypatch.setattr(target, change)
    found = on(gpu, name)
    print(name, found["verdict"], found["said"])
    assert found["verdict"] == "fail"
