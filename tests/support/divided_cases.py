"""What two replicas that divide models among them check together, in processes that are started once."""

import re
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from policy_cases import prepared
from replica_cases import run_replicas
from safetensors.torch import load_file, save_file

from outdo.algorithms.objectives.presets import grpo
from outdo.distributed.replicas import Replicas
from outdo.distributed.sharding import DividingReplicas
from outdo.models.attention.packed import Packed
from outdo.models.critic import own_model
from outdo.models.loading import load_model
from outdo.models.policy import Policy
from outdo.models.reference import frozen
from outdo.testing import tiny_model
from outdo.utils.errors import ModelError
from outdo.utils.sharded_tensors import own_part, whole

Check = Callable[[Replicas], None]


def run_checks(checks: list[Check], folder: Path) -> dict[str, str]:
    """Run checks one after the other in the same two replicas; return the traceback of each, empty if it holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**18))  # freed memory is given back at once, and can be measured
        run_replicas(2, _Checks(checks), folder, timeout=120)
    return {
        check.__name__: "\n".join((folder / f"{check.__name__}-{rank}").read_text() for rank in range(2)).strip()
        for check in checks
    }


class _Checks:
    def __init__(self, checks: list[Check]) -> None:
        self.checks = checks

    def __call__(self, replicas: Replicas) -> None:
        for check in self.checks:
            fault = ""
            try:
                check(replicas)
            except Exception:
                fault = traceback.format_exc()
            Path(f"{check.__name__}-{replicas.rank}").write_text(fault)


def dividing(replicas: Replicas) -> DividingReplicas:
    return DividingReplicas(replicas, torch.device("cpu"))


def saved_model(replicas: Replicas, name: str, **how: object) -> Path:
    """A tiny model that the first replica writes, for both to read."""
    replicas.from_first(lambda: tiny_model(name, **how) and None)  # type: ignore[arg-type]
    return Path(name)


def each_replica_reads_its_part(replicas: Replicas) -> None:
    """Weights and buffers are those of the whole model, bit for bit, tied ones included, and so are its answers."""
    for arch in ("qwen3", "gpt2", "gemma3_text"):
        folder = saved_model(replicas, arch, arch=arch)
        expected = Policy.load(folder, device="cpu")
        found = Policy.load(folder, device="cpu", pool=dividing(replicas))
        assert type(found.model) is type(expected.model)
        assert found.forward.way == expected.forward.way
        for name, weight in expected.model.state_dict().items():
            assert whole(found.model.state_dict()[name]).equal(weight), name
        for own, other in zip(found.model.buffers(), expected.model.buffers(), strict=True):
            assert own.equal(other)
        held = sum(own_part(weight).numel() for weight in found.model.parameters())
        assert held <= 0.51 * expected.model.num_parameters()
        assert found.model.num_parameters() == expected.model.num_parameters()  # tied ones are counted once
        batch = prepared(policy=expected)
        torch.testing.assert_close(found.logprobs(batch), expected.logprobs(batch), rtol=0, atol=1e-5)


def faults_of_one_part_are_named_by_all(replicas: Replicas) -> None:
    """A fault that only one replica can see, as it is in its part, is refused by both in the same words."""
    folder = saved_model(replicas, "sound")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    last = torch.zeros_like(tensors[name])
    last[-1, -1] = torch.nan
    faults = {
        "1 of": {**tensors, name: tensors[name] + last},
        "lack 1 of the weights": {key: value for key, value in tensors.items() if key != name},
        "1 weights that config.json has no place for": {**tensors, "model.more": torch.zeros(1)},
        f"{name} has": {**tensors, name: tensors[name][:-1].clone()},
    }
    for words, content in faults.items():
        replicas.from_first(lambda: save_file(content, folder / "model.safetensors", {"format": "pt"}))  # noqa: B023
        with pytest.raises(ModelError, match=re.escape(words)) as refused:
            load_model(folder, division=dividing(replicas))
        assert len(set(replicas.together(lambda: str(refused.value)))) == 1  # noqa: B023


def a_start_takes_a_part_of_the_memory(replicas: Replicas) -> None:
    """Policy, reference and critic are made with little more than this replica's half of their weights."""
    folder = Path("larger")
    # In bfloat16, so that no weight is a mapped file.
    replicas.from_first(lambda: tiny_model(folder, hidden=512, layers=12)[0].bfloat16().save_pretrained(folder))
    pool = dividing(replicas)
    size = 2 * (folder / "model.safetensors").stat().st_size  # in float32
    with peak_memory() as of_load:
        load_model(folder, division=pool)
    with peak_memory() as of_policy:
        policy = Policy.load(folder, device="cpu", pool=pool)
    with peak_memory() as of_others:
        others = frozen(policy), own_model(policy)
    with peak_memory() as of_all:
        load_model(folder)
    assert of_all[0] > 0.9 * size
    assert of_load[0] < 0.65 * size
    assert of_policy[0] < 1.25 * size  # a half, and some of the 12 layers while the ways to run it are compared
    assert of_others[0] < 1.2 * size  # a half each
    del others


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Measure by how many bytes the memory of this process grows at most in a `with` block, without mapped files."""

    def now() -> int:
        return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]

    def watch() -> None:
        while not ended.wait(0.002):
            seen.append(now())

    before, found, ended = now(), list[int](), threading.Event()
    seen = [before]
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        found.append(max(*seen, now()) - before)


def a_model_whose_attention_fails_is_padded(replicas: Replicas) -> None:
    """An error in the middle of a layer, while the ways to run a model are compared, leaves the model usable."""
    folder = saved_model(replicas, "failing")
    expected = Policy.load(folder, device="cpu", attention="padded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Packed, "attend", None)
        found = Policy.load(folder, device="cpu", pool=dividing(replicas))
    assert found.forward.way == "padded"
    batch = prepared(policy=expected)
    torch.testing.assert_close(found.logprobs(batch), expected.logprobs(batch), rtol=0, atol=1e-5)
    found.update(batch, grpo(beta=0.0))
    expected.update(batch, grpo(beta=0.0))
    for name, weight in expected.model.state_dict().items():
        torch.testing.assert_close(whole(found.model.state_dict()[name]), weight, rtol=0, atol=1e-6)
