"""What two replicas that divide models among them check together, in processes that are started once."""

import ctypes
import errno
import gc
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_cases import other_model
from policy_cases import prepared
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from outdo.algorithms.advantages import gae
from outdo.algorithms.objectives.presets import grpo
from outdo.extras.replicas.replicas import Replicas
from outdo.extras.replicas.sharding import DividingReplicas
from outdo.models import loading
from outdo.models.adapter import adapter_config
from outdo.models.bundle import Models
from outdo.models.critic import own_model
from outdo.models.inspect_folder import inspect_folder
from outdo.models.loading import load_model
from outdo.models.policy import Policy
from outdo.models.reference import frozen
from outdo.run.checkpoints import checkpoint
from outdo.run.checkpoints.checkpoints import Checkpoints
from outdo.run.checkpoints.state import Progress, check_finite, content_of, write
from outdo.testing import ARCHITECTURES, tiny_model
from outdo.utils.errors import DiskFullError, ModelError, NonFiniteWeightsError, WorkerError
from outdo.utils.sharded_tensors import is_sharded, own_part, whole
from outdo.utils.world import ALONE

M_MMAP_THRESHOLD = -3


def dividing(replicas: Replicas, **how: Any) -> DividingReplicas:
    return DividingReplicas(timeout=replicas.timeout, device=torch.device("cpu"), **how)


def saved_model(replicas: Replicas, name: str, **how: object) -> Path:
    """A tiny model that the first replica writes, for both to read."""
    replicas.from_first(lambda: tiny_model(name, **how) and None)  # type: ignore[arg-type]
    return Path(name)


def saved_mixture(replicas: Replicas) -> Path:
    """A mixture of experts, whose names in the files are not those of its weights."""

    def write() -> None:
        _, tokenizer = tiny_model()
        tokenizer.save_pretrained("mixture")
        model = other_model("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
        model.save_pretrained("mixture")

    replicas.from_first(write)
    return Path("mixture")


def each_replica_reads_its_part(replicas: Replicas) -> None:
    """Weights and buffers are those of the whole model, bit for bit, tied ones included, and so are its answers."""
    for arch in ("qwen3", "gpt2", "gemma3_text", "lfm2", "qwen3_moe"):
        folder = saved_model(replicas, arch, arch=arch) if arch in ARCHITECTURES else saved_mixture(replicas)
        expected = Policy.load(folder, device="cpu")
        found = Policy.load(folder, device="cpu", world=dividing(replicas))
        assert type(found.model) is type(expected.model)
        assert found.forward.layout == expected.forward.layout
        for name, weight in expected.model.state_dict().items():
            assert whole(found.model.state_dict()[name]).equal(weight), name
        for own, other in zip(found.model.buffers(), expected.model.buffers(), strict=True):
            assert own.equal(other)
        held = sum(own_part(weight).numel() for weight in found.model.parameters())
        assert held <= 0.51 * expected.model.num_parameters()
        assert found.model.num_parameters() == expected.model.num_parameters()  # tied ones are counted once
        batch = prepared(policy=expected)
        torch.testing.assert_close(found.logprobs(batch), expected.logprobs(batch), rtol=0, atol=1e-5)


def weights_made_of_stored_rows_are_divided(replicas: Replicas) -> None:
    """Where a file has a weight in pieces, each replica reads its part of the whole weight, and trains it."""
    folder = saved_model(replicas, "rows", arch="bailing_hybrid")
    alone, parts = (
        Models.of(Policy.load(folder, device="cpu", world=world), OBJECTIVE, advantage=gae)
        for world in (ALONE, dividing(replicas))
    )
    joined = "model.layers.0.self_attn.conv1d.weight"
    assert (
        own_part(parts.policy.model.state_dict()[joined]).shape[0] == alone.policy.model.get_parameter(joined).shape[0]
    )
    for name, weight in alone.policy.model.state_dict().items():
        assert whole(parts.policy.model.state_dict()[name]).equal(weight), name
    norms = []
    for models in (alone, parts):
        step = models.policy.optimiser.step
        models.policy.optimiser.step = lambda loss, step=step: norms.append(step(loss)) or norms[-1]  # type: ignore[method-assign]
        step_of(models)
    assert norms[1]["grad_norm"] == pytest.approx(norms[0]["grad_norm"], rel=1e-4)
    batch = prepared()
    for scores in ("policy", "reference"):
        expected, found = (getattr(models, scores).logprobs(batch) for models in (alone, parts))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def a_base_with_adapters_is_divided(replicas: Replicas) -> None:
    """Policy, reference and critic train adapters on one base, as in one process; each replica holds half of it."""
    folder = saved_model(replicas, "base")
    for stored in ("float32", "bfloat16"):
        settings = {"device": "cpu", "adapter": adapter_config("lora", r=4, lora_alpha=8), "weights": stored}
        alone, parts = (
            Models.of(Policy.load(folder, world=world, **settings), OBJECTIVE, advantage=gae)  # type: ignore[arg-type]
            for world in (ALONE, dividing(replicas))
        )
        assert parts.policy.forward.layout == "shared"
        before = whole(frozen_weights(parts))
        assert_equal(dict(frozen_weights(alone)), before)
        held = sum(own_part(weight).numel() for weight in frozen_weights(parts).values())
        assert held <= 0.51 * sum(weight.numel() for weight in before.values())
        batch = prepared()
        for step in range(4):
            for models in (alone, parts):
                step_of(models)
                models.refresh(step)
                models.refresh_every = 2  # so that the reference is the base at first, and a copy of the adapter then
            of_models = [(each.policy.logprobs, each.reference.logprobs, each.critic.values) for each in (alone, parts)]  # type: ignore[union-attr]
            for expected, found in zip(*of_models, strict=True):
                torch.testing.assert_close(found(batch), expected(batch), rtol=0, atol=3e-6)
        for each in ("policy", "critic"):
            of_alone, of_parts = (getattr(models, each).optimiser.weights for models in (alone, parts))
            assert not any(map(is_sharded, of_parts.values()))
            for name, weight in of_alone.items():
                torch.testing.assert_close(of_parts[name], weight, rtol=0, atol=3e-6)
        assert_equal(before, whole(frozen_weights(parts)))
        assert not parts.is_divided


def frozen_weights(models: Models) -> dict[str, torch.Tensor]:
    return {name: each for name, each in models.policy.model.named_parameters() if not each.requires_grad}


def adapters_that_read_the_base_are_refused_before_it_is_read(replicas: Replicas) -> None:
    """Also where the adapter is that of a folder."""
    folder = saved_model(replicas, "base")
    for name, options, words in (
        ("lora", {"use_dora": True}, "LoRA with use_dora = True does not work on a divided model"),
        ("lora", {"init_lora_weights": "pissa"}, "LoRA with init_lora_weights = pissa does not work"),
        (
            "oft",
            {"target_modules": ["q_proj"], "oft_block_size": 8},
            "an adapter of the kind oft does not work on a divided model",
        ),
    ):
        config = adapter_config(name, **options)
        made = Path(f"saved-{'-'.join((name, *options))}")
        replicas.from_first(lambda: Policy.load(folder, device="cpu", adapter=config).save(made))  # noqa: B023
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loading, "_load", None)
            for path, adapter in ((folder, config), (made, None)):
                with pytest.raises(ModelError, match=re.escape(words)):
                    Policy.load(path, device="cpu", adapter=adapter, world=dividing(replicas))


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
        "1 weight that config.json has no place for": {**tensors, "model.more": torch.zeros(1)},
        f"{name} has": {**tensors, name: tensors[name][:-1].clone()},
    }
    for words, content in faults.items():
        replicas.from_first(lambda: save_file(content, folder / "model.safetensors", {"format": "pt"}))  # noqa: B023
        with pytest.raises(ModelError, match=re.escape(words)) as refused:
            load_model(folder, world=dividing(replicas))
        assert len(set(replicas.together(lambda: str(refused.value)))) == 1


def a_start_takes_a_part_of_the_memory(replicas: Replicas) -> None:
    """Policy, reference and critic are made with little more than this replica's half of their weights."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**18)  # freed memory is given back at once
    folder = Path("larger")
    # In bfloat16, so that no weight is a mapped file.
    replicas.from_first(lambda: tiny_model(folder, hidden=512, layers=12)[0].bfloat16().save_pretrained(folder))
    world = dividing(replicas)
    size = 2 * (folder / "model.safetensors").stat().st_size  # in float32
    with peak_memory() as of_load:
        loaded = load_model(folder, world=world)
    with peak_memory() as of_policy:
        policy = Policy.load(folder, device="cpu", world=world)
    with peak_memory() as of_others:
        others = frozen(policy), own_model(policy)
    with peak_memory() as of_all:
        load_model(folder)
    assert of_all[0] > 0.9 * size
    assert of_load[0] < 0.65 * size
    assert of_policy[0] < 1.25 * size  # a half, and some of the 12 layers while the ways to run it are compared
    assert of_others[0] < 1.2 * size  # a half each
    del loaded, others


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Measure by how many bytes the memory of this process grows at most in a `with` block, without mapped files."""

    def now() -> int:
        return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]

    def watch() -> None:
        while not ended.wait(0.002):
            seen.append(now())

    gc.collect()
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


def replicas_save_their_shares_together(replicas: Replicas) -> None:
    """A checkpoint is an ordinary model folder in several files, and any number of processes goes on from it."""
    for folder in (saved_model(replicas, "tied", arch="gpt2"), saved_mixture(replicas)):
        models = trained(folder, replicas)
        path = save_together(models, replicas, Path(f"{folder}-checkpoints"), step=1)
        weights, state = whole(models.policy.model.state_dict()), whole(models.state())
        assert checkpoint.verify(path) == []
        for kind in ("model", "state/tensors"):
            sizes = [file.stat().st_size for file in sorted(path.glob(f"{kind}-0000?-of-00002.safetensors"))]
            assert len(sizes) == 2
            assert max(sizes) < 0.65 * sum(sizes)
        assert not list(path.glob("part*"))
        assert AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).num_parameters()
        assert inspect_folder(path).parameters == inspect_folder(folder).parameters  # tied weights are stored once

        alone = Models.of(Policy.load(path, device="cpu"), OBJECTIVE, advantage=gae)
        alone.load_state(checkpoint.load_state(path)["models"])
        assert_equal(weights, dict(alone.policy.model.state_dict()))
        assert_equal(state, alone.state())

        again = Models.of(Policy.load(path, device="cpu", world=dividing(replicas)), OBJECTIVE, advantage=gae)
        again.load_state(checkpoint.load_state(path)["models"])
        for each in (models, again):
            step_of(each)
        assert_equal(whole(models.policy.model.state_dict()), whole(again.policy.model.state_dict()))
        assert_equal(whole(models.state()), whole(again.state()))


def a_disk_that_is_full_on_one_replica_leaves_the_checkpoint_before(replicas: Replicas) -> None:
    """No replica publishes a checkpoint that another one could not write, and the next save succeeds."""
    models = trained(saved_model(replicas, "full"), replicas)
    folder = Path("full-checkpoints")
    before = save_together(models, replicas, folder, step=1)

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        if replicas.rank == 1:
            patch.setattr(checkpoint, "save_file", refuse)
        with pytest.raises(DiskFullError if replicas.rank == 1 else WorkerError, match="o space left"):
            save_together(models, replicas, folder, step=2)
    replicas.together(lambda: None)
    assert [path.name for path in folder.iterdir()] == [before.name]
    assert checkpoint.verify(save_together(models, replicas, folder, step=2)) == []


def weights_of_one_part_that_are_not_finite_are_not_saved(replicas: Replicas) -> None:
    """A number that only one replica sees keeps all of them from saving."""
    models = trained(saved_model(replicas, "broken"), replicas)
    if replicas.rank == 1:
        own_part(next(models.policy.model.parameters()).detach()).fill_(torch.inf)
    with pytest.raises(NonFiniteWeightsError if replicas.rank == 1 else WorkerError, match="not finite"):
        save_together(models, replicas, Path("broken-checkpoints"), step=1)
    assert not list(Path().glob("broken-checkpoints/*"))


OBJECTIVE = grpo(beta=0.1)


def trained(folder: Path, replicas: Replicas, **settings: Any) -> Models:
    """Policy, reference and critic after a step."""
    policy = Policy.load(folder, device="cpu", world=dividing(replicas), **settings)
    models = Models.of(policy, OBJECTIVE, advantage=gae)
    step_of(models)
    return models


def step_of(models: Models) -> None:
    batch = prepared()
    returns = torch.rand(batch.token_ids.shape, generator=torch.Generator().manual_seed(1))
    assert models.critic is not None
    models.update(batch.with_(returns=returns, values=models.critic.values(batch)), OBJECTIVE)


def a_checkpoint_is_written_while_the_replicas_compute(replicas: Replicas) -> None:
    """The files are those of a save that waits, though the second replica writes after later steps and exchanges."""
    models = trained(saved_model(replicas, "computing"), replicas)
    go_on, save = threading.Event(), checkpoint.save

    def later(*arguments: Any) -> Path:
        if replicas.rank == 1:
            go_on.wait()
        return save(*arguments)

    before = save_together(models, replicas, Path("waiting"), step=1)
    folder = Path("background")
    checkpoints = checkpoints_of(models, replicas, folder)
    assert checkpoints._beside
    assert checkpoints._beside.objects.group_name != replicas.objects.group_name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", later)
        checkpoints.save(Progress(step=1), wait=False)
        try:
            for number in range(3):
                assert replicas.together(lambda: (replicas.rank, number)) == [(0, number), (1, number)]  # noqa: B023
                step_of(models)
            assert not list(folder.glob("step*"))
        finally:
            go_on.set()
        checkpoints.wait()
    assert checkpoint.verify(folder / before.name) == []
    files = [
        {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        for path in (before, folder / before.name)
    ]
    assert files[0] == files[1]
    checkpoints.save(Progress(step=2), wait=True)
    replicas.together(lambda: None)
    assert checkpoint.verify(folder / "step_000002") == []
    assert checkpoints.close() == ""


def save_together(models: Models, replicas: Replicas, checkpoints: Path, *, step: int) -> Path:
    """Save as a run does at its end; the folder of the second replica is another one, that is not used."""
    run, folder = run_of(models, replicas, checkpoints)
    check_finite(run)
    write(folder, run, content_of(run, Progress(step=step)), replicas)
    assert not Path("unused").exists()
    return checkpoints / f"step_{step:06d}"


def checkpoints_of(models: Models, replicas: Replicas, folder: Path) -> Checkpoints:
    """What saves a run in the background."""
    run, run_folder = run_of(models, replicas, folder)
    return Checkpoints(run_folder, run, saved=0)


def run_of(models: Models, replicas: Replicas, checkpoints: Path) -> tuple[Any, Any]:
    """What saving needs of a run and its folder."""
    recipe = SimpleNamespace(checkpoint=SimpleNamespace(keep=9))
    parts = {"method": SimpleNamespace(adaptive={}), "reward": SimpleNamespace(learning=[]), "watchers": []}
    ahead = SimpleNamespace(state=lambda after: {})
    world = {"world": replicas, "writers": replicas, "is_divided": True}
    sampling = SimpleNamespace(rollouts=ahead)
    run = SimpleNamespace(models=models, recipe=recipe, **parts, sampling=sampling, identity={}, **world)
    folder = SimpleNamespace(checkpoints=checkpoints if replicas.first else Path("unused"))
    return run, folder


def assert_equal(one: Any, other: Any) -> None:
    """Compare states bit for bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    elif isinstance(one, torch.Tensor):
        assert one.equal(other)
    else:
        assert one == other
