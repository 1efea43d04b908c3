"""The rows of `make gpu`: what a GPU executes for the first time, why it could differ, and what shows that it does not.

What has to be equal is compared in float32. In bfloat16 the rounding of a product depends on its number of rows, so
that two right runs soon sample different tokens.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.checks import (
    MISMATCH,
    Check,
    Need,
    at_most,
    close,
    cuda,
    equal_tokens,
    equal_weights,
    gpus,
    package,
    printed,
    ran_out_of_memory,
    smollm2,
    vllm,
    within,
)

MEASURED = ("tokens_per_second", MISMATCH, "grad_norm", "entropy", "seconds", "time/record", "time/copy")
MEASURED += ("engine/delivery_seconds", "engine/tokens_read_per_sampled")
"""The metrics that are kept of the last step of a run, where it has them."""


class Found(NamedTuple):
    """What a row has found: whether each thing holds that has to, with a few words on it; and what was measured."""

    held: Sequence[tuple[bool, str]]
    measured: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A run by some settings, as they are typed, and what has to hold of it and of the run `beside` it, if any.

    `beside` equal settings make a second run. The run is resumed with the settings `then`. Where a row is not a run,
    `look` makes what it looks at.
    """

    name: str
    what: str  # runs on a GPU for the first time
    why: str  # it could differ
    settings: str = ""
    checks: Sequence[Check] = ()
    beside: str | None = None
    then: str | None = None
    memory: int = 0  # MiB of the GPU that torch may take; 0: all
    recipe: str = ""
    needs: Sequence[Need] = ()
    look: Callable[[Bench], Found] | None = None

    def found(self, bench: Bench) -> Found:
        """Make the runs that are missing, and look at them."""
        if self.look is not None:
            return self.look(bench)
        run = other = bench.train(self.settings, recipe=self.recipe, memory=self.memory, then=self.then)
        if self.beside is not None:
            other = bench.train(self.beside, again=self._is_twice)
        held = [check.look(run, other) for check in (at_most("updates/refused", 0), *self.checks)]
        last = run.metrics[-1]
        return Found(held[held[0][0] :], {name: last[name] for name in MEASURED if name in last})

    @property
    def text(self) -> str:
        """What has to hold, for the page."""
        if self.look is not None:
            return " ".join((self.look.__doc__ or "").split())
        parts = [f"`outdo train {self.recipe or '...'} {self.settings}`" if self.settings else "a plain run"]
        parts += [f"resumed with `{self.then}`"] * (self.then is not None)
        parts += [f"in {self.memory} MiB"] * bool(self.memory)
        beside = f"beside `{self.beside}`" if self.beside else "beside a plain run"
        if self.beside and self.settings and self.beside.startswith(self.settings):
            beside = f"beside the same with `{self.beside.removeprefix(self.settings).strip()}`"
        parts += ["twice" if self._is_twice else beside] * (self.beside is not None)
        return f"{', '.join(parts)}: {', '.join(check.text for check in self.checks)}"

    @property
    def _is_twice(self) -> bool:
        return self.beside == self.settings and self.then is None


def captured_steps(bench: Bench) -> Found:
    """`python -m benchmarks.gpu.decoding`: every number of rows is captured and gives the `token_ids` of eager steps;
    the host waits for the device less than once in a step, and for 64 rows as often as for 1. Tokens a second of both.
    """
    measured = json.loads(bench.run(["-m", "benchmarks.gpu.decoding", bench.device]).splitlines()[-1])
    wrong = [rows for rows, each in measured["buckets"].items() if each]
    waits = measured["waits"]
    speeds = [f"{rows} rows {eager:,.0f} to {fast:,.0f}" for rows, (eager, fast) in measured["speeds"].items()]
    held = [
        (not wrong, f"{len(measured['buckets'])} numbers of rows are captured; faults: {measured['buckets']}"),
        (max(waits.values()) < 1 and len(set(waits.values())) == 1, f"waits in a step, by rows: {waits}"),
        (True, f"tokens/s, eager to captured: {', '.join(speeds)}"),
    ]
    return Found(held, measured)


TWO = "cluster.replicas=2"
DIVIDED = f"{TWO} cluster.shard=true"
ENGINE = """engine='{name = "builtin", processes = 1}'"""
AHEAD = f"""{TWO} steps=4 train.max_staleness=2 engine='{{name = "builtin", processes = 1, partial_rollouts = true}}'"""
JUDGED = """rewards='{name = "reward_model", path = "HOME/reward_model"}'"""
GAME = """environment='{name = "HOME/guessing.py:Game", turns = 3}' rewards=environment"""
GAME += " model=HOME/player data.path=HOME/games.jsonl"
ADAPTER = "train.adapter=lora optim.lr=1e-2"  # with 1e-4 an adapter that sampling leaves out is 0.003 nats away
WIDE = "model=HOME/wide steps=1 train.group_size=8 sampling.max_tokens=32"
LONG = "steps=1 train.prompts=16 train.group_size=16 sampling.max_tokens=256"
SMOLLM2 = "model=SMOLLM2 data.path=HOME/smollm2/instructions/train.jsonl data.eval_path= eval.every=0 seed=100 steps=10"

SAME = (equal_tokens(), close("grad_norm", 1e-2), close("step_kl", 1e-2))
"""What two ways to compute the same steps have in common. `step_kl` is how far the update of a step moves the policy.
Nothing else here looks at the last update, the first that the moments of the one before decide."""
FIRST = (equal_tokens(1), close("grad_norm", 1e-3, 1), close("entropy", 1e-4, 1))
"""What two ways to compute the same step have in common; the steps after it amplify how the first one was rounded."""


def agrees(most: float) -> Check:
    """Sampler and trainer agree on the log-probability of each token to so many nats."""
    return at_most(MISMATCH, most)


# fmt: off
ROWS = {row.name: row for row in (
    Row("processor", "a step in float32, its record, AdamW with `fused`", "other kernels, other orders of sums",
        "", [*FIRST, close("moved_as_intended", 0.02, 1)], beside="device=cpu"),
    Row("deterministic", "deterministic algorithms", "torch warns where an operation has no deterministic version",
        "", [equal_weights()], beside=""),
    Row("bfloat16", "bfloat16 products, the default on a GPU", "sampler and trainer differ by rounding",
        "precision=bfloat16", [agrees(0.5)]),
    Row("sampling", "the key-value cache, the choice of tokens", "other kernels; a probe tries the fastest way first",
        "", [printed("sampling:"), agrees(1e-3)]),
    Row("captured", "steps captured as CUDA graphs ([0042](decisions/0042-steps-that-the-host-does-not-look-at.md))",
        "an operator may not be captured, or may read an address that has changed",
        look=captured_steps, needs=[cuda]),
    Row("episodes", "episodes of several turns", "keys and values stay on the GPU, and are copied to be read",
        GAME, [equal_tokens(1), agrees(1e-3)], beside=f"{GAME} device=cpu"),
    Row("shared", "shared prompts, grouped heads with a mask; probes in float64", "another attention kernel",
        "", [printed("attention: shared"), *FIRST], beside="attention=padded"),
    Row("flash_attention", "FlashAttention, in bfloat16 with `flash-attn`", "tests compute what it documents",
        "precision=bfloat16", [printed("attention: shared, by flash_attention_2"), agrees(0.5)],
        needs=[cuda, package("flash_attn")]),
    Row("flex_attention", "FlexAttention", "its generated code",
        "attention=flex_attention", [printed("attention: shared, by flex_attention"), *FIRST], beside="", needs=[cuda]),
    Row("vocabulary", "log-probabilities in blocks of 120,000 tokens", "blocks of 256 MiB instead of 8",
        WIDE, FIRST, beside=f"{WIDE} device=cpu"),
    Row("micro_batches", "`train.micro_batch_tokens = auto`", "it asks CUDA for free memory",
        "train.micro_batch_tokens=auto", SAME, beside=""),
    Row("memory", "memory that runs out in an update", "another error; fragmented memory",
        f"{LONG} train.micro_batch_tokens=1000000", [ran_out_of_memory(), *FIRST],
        beside=f"{LONG} train.micro_batch_tokens=4096", memory=512, needs=[cuda]),
    Row("adamw8bit", "the optimiser `adamw8bit`", "other kernels",
        "optim.algorithm=adamw8bit", [equal_tokens(1), close("grad_norm", 0.05), close("step_kl", 0.05)], beside="",
        needs=[package("bitsandbytes")]),
    Row("resume", "checkpoints, and a run that is resumed", "weights and moments go to the disk and back",
        "steps=1", [equal_tokens(), equal_weights()], then="steps=2", beside=""),
    Row("adapter", "an adapter on bfloat16", "other kernels",
        f"{ADAPTER} weights=bfloat16", [agrees(1e-3)], needs=[package("peft")]),
    Row("int8", "an adapter on int8", "other kernels; a check refuses a gradient that is cut off",
        f"{ADAPTER} weights=int8", [agrees(0.05)], needs=[package("peft"), package("torchao")]),
    Row("nf4", "an adapter on nf4", "the same",
        f"{ADAPTER} weights=nf4", [agrees(0.05)], needs=[package("peft"), package("bitsandbytes")]),
    Row("compile", "`compile = true`", "other generated code",
        "compile=true", FIRST, beside=""),
    Row("vllm", "the engine `vllm`", "weights go to another process; the proof compares them after each update",
        """engine='{name = "vllm", python = "VLLM"}' precision=bfloat16""", [agrees(0.5)], needs=[vllm]),
    Row("vllm_sleep", "vLLM that sleeps while the policy trains", "it releases memory, and gets its weights anew",
        """engine='{name = "vllm", python = "VLLM", sleep = true, gpu_memory_utilization = 0.6}' precision=bfloat16""",
        [agrees(0.5)], needs=[cuda, vllm]),
    Row("smollm2", "ten steps of SmolLM2-135M-Instruct in bfloat16", "a model that has learned something",
        f"{SMOLLM2} precision=bfloat16", [within("benchmarks/gpu/smollm2.band.toml"), agrees(1.0)],
        recipe="examples/smollm2/instructions.toml", needs=[package("gguf"), smollm2]),
    Row("replicas", "replicas", "NCCL adds up gradients, gloo does the rest",
        TWO, SAME, beside="", needs=[gpus(2)]),
    Row("ulysses", "replicas that share sequences", "NCCL exchanges tokens and heads",
        f"{TWO} attention=ulysses", SAME, beside="", needs=[gpus(2)]),
    Row("divided", "divided models; a checkpoint of two for one", "NCCL gathers weights and scatters gradients",
        f"{DIVIDED} steps=1", SAME, then="steps=2 cluster.replicas=1 cluster.shard=false", beside="", needs=[gpus(2)]),
    Row("divided_ulysses", "divided models that share sequences", "both",
        f"{DIVIDED} attention=ulysses", SAME, beside="", needs=[gpus(2)]),
    Row("offload", "divided models in main memory", "pinned parts are copied to the GPU, gradients back",
        f"{TWO} cluster.shard='{{offload = true}}'", SAME, beside=DIVIDED, needs=[gpus(2)]),
    Row("reduce_dtype", "gradients of divided models in bfloat16", "NCCL sums bfloat16",
        f"""{TWO} cluster.shard='{{reduce_dtype = "bfloat16"}}'""", [close("grad_norm", 1e-2)],
        beside=DIVIDED, needs=[gpus(2)]),
    Row("divided_rewards", "divided reward models", "as divided models",
        f"{DIVIDED} {JUDGED}", [equal_tokens(1), close("reward", 1e-4, 1)], beside=JUDGED, needs=[gpus(2)]),
    Row("engine", "the engine `builtin` with `processes`", "each copies the weights to a GPU, and proves it",
        ENGINE, SAME, beside="", needs=[gpus(2)]),
    Row("ray", "engines in actors of Ray", "weights go through main memory",
        """engine='{name = "builtin", processes = 1, place = "ray"}'""", SAME, beside="",
        needs=[package("ray"), gpus(2)]),
    Row("engine_and_replicas", "an engine beside replicas", "its processes get the GPUs after those of the replicas",
        f"{DIVIDED} {ENGINE}", SAME, beside=DIVIDED, needs=[gpus(3)]),
    Row("ahead", "sampling ahead; partial rollouts", "gathered weights on the first GPU; other shapes of the prefill",
        AHEAD, [equal_tokens()], beside=AHEAD, needs=[gpus(3)]),
)}
# fmt: on
"""The rows by name, in the order in which they run."""
