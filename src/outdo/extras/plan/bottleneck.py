"""Name the bottleneck of a step: the part that would have to become shorter for the step to become shorter."""

from outdo.extras.plan import memory, timing
from outdo.extras.plan.hardware import Card
from outdo.extras.plan.layout import StepTime
from outdo.extras.plan.problem import IN_PLACE
from outdo.extras.plan.shapes import BFLOAT16, Shape
from outdo.extras.plan.workload import Workload


def bottleneck(step: StepTime, shape: Shape, card: Card, work: Workload) -> str:
    """Return a sentence about the bottleneck of a step."""
    if step.layout.staleness > 0:
        waits = step.trainer_idle - step.update > 0.1 * step.step
        return _sampling(step, shape, card, work) if waits else _training(step, work)
    parts = {
        "sampling": step.sampling,
        "training": step.training + step.scoring - step.rewards,
        "rewards": step.rewards,
        "update": step.update,
        "host": step.host,
    }
    largest = max(parts, key=lambda name: parts[name])
    if largest == "sampling":
        return _sampling(step, shape, card, work)
    if largest == "training":
        return _training(step, work)
    if largest == "rewards":
        return _rewards(step, work)
    if largest == "update":
        return f"the weight update: {step.update:,.1f} s in which nobody works; a larger batch makes it rarer"
    return (
        f"the host: {step.host:g} s of rewards, batches and metrics in each step; the batch is too small for this "
        "cluster"
    )


def _rewards(step: StepTime, work: Workload) -> str:
    shared = step.layout.shards > 1 and step.layout.staleness == 0
    alone = "" if shared or not any(reward.divided for reward in work.rewards) else ", by the first device alone"
    return (
        f"the reward models: {step.rewards:,.1f} s{alone}; replicas that divide their models (cluster.shard) share it"
    )


def _sampling(step: StepTime, shape: Shape, card: Card, work: Workload) -> str:
    if step.alone > 0.4 * step.sampling:
        return (
            f"the longest answers: in {step.alone:,.0f} of {step.sampling:,.0f} s of sampling, at most a tenth of an "
            "engine's answers run. More devices do not help; a shorter limit, a faster engine or staleness do"
        )
    width = step.layout.width
    tokens = step.running * (work.prompt_tokens + work.lengths.mean / 2)
    seconds = {
        "reading the weights": BFLOAT16 * float(shape.touched(step.running)) / width / card.bandwidth,
        "reading keys and values": tokens * memory.cache_bytes(shape, width) / card.bandwidth,
        "arithmetic": step.running * 2 * shape.active / width / card.peak,
    }
    latency = 2 * shape.layers * timing.HOP["machine" if width <= card.machine else "network"] if width > 1 else 0.0
    seconds["the latency between the devices of an engine"] = latency
    largest = max(seconds, key=lambda name: seconds[name])
    if step.layout.kind in IN_PLACE and card.launch * shape.layers > sum(seconds.values()) / card.captured:
        return "sampling: the device waits for the host, which starts the kernels; CUDA graphs or vLLM make it faster"
    return f"sampling: {largest}, with {step.running:,.0f} answers on an engine of {width}; more engines make it faster"


def _training(step: StepTime, work: Workload) -> str:
    whole = step.training + step.scoring - step.rewards
    if step.gathering > 0.5 * step.training:
        return (
            f"training: {step.gathering:,.1f} of {whole:,.1f} s wait for weights and gradients of other devices"
            f"{' and of main memory' * step.layout.offload}; larger micro-batches or fewer shards wait less"
        )
    streams = max(1, step.layout.trainers // (step.layout.sequence * step.layout.pipeline))
    if work.tokens / work.optimiser_steps / streams < work.longest:
        return (
            "training: the longest answer, which one device computes alone, is more than the others have to do; more "
            "devices help only together with more answers or sequence parallelism"
        )
    return f"training: arithmetic, {whole:,.1f} s of a step; more trainers make it shorter in proportion"
