"""Functions that several processes run together as replicas, and what starts them."""

import copy
import faulthandler
import gc
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engine_cases import fresh, requests
from policy_cases import ADVANTAGE, prepared, updated, weights
from run_cases import WARM
from torch import Tensor
from toys import rollout

from outdo.algorithms.advantages import gae
from outdo.algorithms.objectives.presets import grpo
from outdo.extras.replicas.engine import ReplicatedEngine
from outdo.extras.replicas.launch import RENDEZVOUS
from outdo.extras.replicas.replicas import Replicas, join
from outdo.extras.replicas.sharding import DividingReplicas
from outdo.models.bundle import Models
from outdo.models.critic import own_head, own_model
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.run.assemble.sampling import RunSampling
from outdo.types import Batch, Group, Prompt
from outdo.utils.errors import WorkerError
from outdo.utils.sharded_tensors import is_sharded, own_part, whole

Check = Callable[[Replicas], None]


def run_replicas(count: int, body: Callable[[Replicas], None], folder: Path, *, timeout: float = 300.0) -> None:
    """Run `body` in `count` processes that are replicas of each other; an error in one of them fails the test."""
    arguments = (count, body, str(folder), timeout)
    processes = [WARM.Process(target=_replica, args=(rank, *arguments)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
    statuses = [process.exitcode for process in processes]
    assert statuses == [0] * count, f"the replicas ended with {statuses}"


def _replica(rank: int, count: int, body: Callable[[Replicas], None], folder: str, timeout: float) -> None:
    gc.freeze()  # the garbage collector need not look at what the server has loaded
    faulthandler.enable()
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "GLOO_SOCKET_IFNAME": "lo"}
    os.chdir(folder)
    os.environ[RENDEZVOUS] = Path(folder, "rendezvous").as_uri()
    with join(timeout=timeout) as replicas:
        body(replicas)


def run_checks(checks: list[Check], folder: Path, count: int = 2, *, timeout: float = 300.0) -> dict[str, str]:
    """Run checks one after the other in the same replicas; return the traceback of each, empty if it holds."""
    run_replicas(count, _Checks(checks), folder, timeout=timeout)
    return {
        check.__name__: "\n".join((folder / f"{check.__name__}-{rank}").read_text() for rank in range(count)).strip()
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


def random_shares(replicas: Replicas) -> None:
    """Batches of any shape: also fewer rows than replicas, and rows of very different lengths."""
    _random_shares(replicas, shared, 16)


def random_shares_of_parts(replicas: Replicas) -> None:
    """The same with weights that are divided: no replica waits for one that has fewer micro-batches."""
    _random_shares(replicas, divided, 8)


def _random_shares(replicas: Replicas, make: Callable[[Policy, Replicas], Policy], batches: int) -> None:
    random = torch.Generator().manual_seed(0)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    alone, policy = fresh(), make(fresh(), replicas)
    start = [[weight.detach().clone() for weight in each.model.parameters()] for each in (alone, policy)]
    for _ in range(batches):
        for each, before in zip((alone, policy), start, strict=True):
            for weight, value in zip(each.model.parameters(), before, strict=True):
                weight.data.copy_(value)
        alone.batch_sizes = policy.batch_sizes = BatchSizes(micro_batch_tokens=number(1, 120))
        groups = [
            Group(
                prompt=Prompt(id=str(n), text="", token_ids=tuple(range(5, 6 + number(0, 6)))),
                rollouts=tuple(rollout(number(1, 30), float(number(0, 2))) for _ in range(number(1, 5))),
            )
            for n in range(number(1, 5))
        ]
        batch = ADVANTAGE(Batch.from_groups(groups))
        objective = grpo(beta=0.0)
        if batch.advantages is not None and not batch.advantages.any():  # no weight has a gradient
            unchanged = weights(policy)
            policy.update(batch, objective)
            assert weights(policy).equal(unchanged)
            continue
        found, theirs = updated(policy, batch, objective)  # type: ignore[arg-type]
        if replicas.first:  # the others have the same gradient: their weights are compared at the next step
            expected, gradient = updated(alone, batch, objective)  # type: ignore[arg-type]
            torch.testing.assert_close(theirs, gradient, rtol=1e-4, atol=1e-6)
            for name, values in expected.tokens.items():
                torch.testing.assert_close(found.tokens[name], values, rtol=1e-4, atol=1e-5)


def memory_runs_out(replicas: Replicas) -> None:
    """Replica 1 has memory for 20 tokens at a time: all of them halve, and none hangs."""
    policy = shared(fresh(batch_sizes=BatchSizes(micro_batch_tokens=64)), replicas)
    if replicas.rank == 1:
        hidden = policy.forward.hidden

        def scarce(batch: Batch) -> object:
            if batch.token_ids.numel() > 20 < policy.batch_sizes.micro_batch_tokens:
                raise MemoryError("scarce")
            return hidden(batch)

        policy.forward.hidden = scarce  # type: ignore[method-assign]
    batch = prepared()
    expected, gradient = updated(fresh(), batch)
    found, theirs = updated(policy, batch)
    assert policy.batch_sizes.micro_batch_tokens == 16
    torch.testing.assert_close(theirs, gradient, rtol=1e-4, atol=1e-6)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-5)


def memory_runs_out_in_a_critic(replicas: Replicas) -> None:
    """So it is with a critic, in its values and in its update."""
    policy = shared(fresh(batch_sizes=BatchSizes(micro_batch_tokens=64)), replicas)
    alone, critic = own_model(fresh(), lr=1e-3), own_model(policy, lr=1e-3)
    if replicas.rank == 1:
        hidden = critic.forward.hidden

        def scarce(batch: Batch) -> object:
            most = 20 if torch.is_grad_enabled() else 40
            if batch.token_ids.numel() > most < critic.batch_sizes.micro_batch_tokens:
                raise MemoryError("scarce")
            return hidden(batch)

        critic.forward.hidden = scarce  # type: ignore[method-assign]
    batch = prepared()
    values = critic.values(batch)
    torch.testing.assert_close(values, alone.values(batch), rtol=0, atol=1e-5)
    assert critic.batch_sizes.micro_batch_tokens == 32
    returns = torch.rand(batch.token_ids.shape, generator=torch.Generator().manual_seed(1))
    taught = batch.with_(values=values, returns=returns)
    assert critic.update(taught) == pytest.approx(alone.update(taught), rel=1e-4, abs=1e-5)
    assert critic.batch_sizes.micro_batch_tokens == 16
    assert policy.batch_sizes.micro_batch_tokens == 64


def weights_drift(replicas: Replicas) -> None:
    """One weight of replica 1 differs in its last bit: the next update is refused on all replicas."""
    policy = shared(fresh(), replicas)
    policy.update(prepared(), grpo(beta=0.0))
    if replicas.rank == 1:
        weight = next(policy.model.parameters()).data
        weight.view(torch.int32)[0, 0] ^= 1
    with pytest.raises(WorkerError, match="the weights of replica 1 are no longer those of the first one"):
        policy.update(prepared(), grpo(beta=0.0))


def errors_reach_all(replicas: Replicas) -> None:
    """An error on one replica is raised there, and named on the others."""

    def fail() -> int:
        if replicas.rank == 1:
            raise KeyError("lost")
        return replicas.rank

    with pytest.raises(KeyError if replicas.rank == 1 else WorkerError, match=r"lost"):
        replicas.together(fail)
    assert replicas.together(lambda: replicas.rank) == [0, 1]  # and they go on together

    def refuse() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError if replicas.first else WorkerError, match="no"):
        replicas.from_first(refuse)
    assert replicas.from_first(lambda: replicas.rank) == 0


def errors_of_two_kinds(replicas: Replicas) -> None:
    """Memory runs out on one replica while the other fails: none of them tries again alone."""

    def fail() -> int:
        raise KeyError("lost") if replicas.rank else MemoryError("scarce")

    with pytest.raises(KeyError if replicas.rank else WorkerError, match="lost"):
        replicas.together(fail)


def closed_runs(replicas: Replicas) -> None:
    """A run that is closed leaves its replicas together."""
    shared(fresh(), replicas)
    nothing = SimpleNamespace(close=lambda: None, stop=lambda: None, join=lambda: None)
    RunSampling.close(SimpleNamespace(engine=nothing, reward=nothing, rollouts=nothing))  # type: ignore[arg-type]
    assert replicas.together(lambda: replicas.rank) == [0, 1]


def one_hangs(replicas: Replicas) -> None:
    """A replica that does not answer within the timeout is lost, whatever the others wait for."""
    if replicas.first:
        with pytest.raises(WorkerError, match="another replica ended, or does not answer"):
            replicas.together(lambda: 0)
        Path("gave-up").touch()
        return
    while not Path("gave-up").exists():
        time.sleep(0.1)


def shared(policy: Policy, replicas: Replicas) -> Policy:
    """The same model, trained by all replicas."""
    return Policy(policy.model, policy.tokenizer, batch_sizes=policy.batch_sizes, world=replicas)


def divided(policy: Policy, replicas: Replicas) -> Policy:
    """The same model, of which each replica reads a part."""

    def write() -> None:
        policy.model.save_pretrained("model")
        policy.tokenizer.save_pretrained("model")

    replicas.from_first(write)
    world = DividingReplicas(timeout=replicas.timeout, device=policy.device)
    read = Policy.load("model", device="cpu", batch_sizes=policy.batch_sizes, world=world)
    replicas.together(lambda: None)  # then the next model may be written
    return read


def parts_of_all_models(replicas: Replicas) -> None:
    """Policy, reference and critic compute the same as whole ones, twice, and each replica holds half of them."""
    objective, batch = grpo(beta=0.1), prepared()
    batch = batch.with_(returns=torch.rand(batch.token_ids.shape, generator=torch.Generator().manual_seed(1)))
    alone, parts = (Models.of(policy, objective, advantage=gae) for policy in (fresh(), divided(fresh(), replicas)))
    for _ in range(2):
        for models in (alone, parts):
            assert models.reference is not None
            assert models.critic is not None
        torch.testing.assert_close(parts.policy.logprobs(batch), alone.policy.logprobs(batch), rtol=0, atol=1e-5)
        torch.testing.assert_close(parts.reference.logprobs(batch), alone.reference.logprobs(batch), rtol=0, atol=1e-5)
        torch.testing.assert_close(parts.critic.values(batch), alone.critic.values(batch), rtol=0, atol=1e-5)
        measured = [
            models.update(batch.with_(values=models.critic.values(batch)), objective).metrics
            for models in (parts, alone)
        ]
        assert measured[0] == pytest.approx(measured[1], rel=1e-4, abs=1e-5)
    alone.refresh(1)
    expected, found = alone.state(), whole(parts.state())
    for name, weight in expected["critic"]["weights"].items():
        torch.testing.assert_close(found["critic"]["weights"][name], weight, rtol=0, atol=1e-5)
    held = sum(own_part(weight).numel() for weight in parts.policy.model.parameters())
    total = sum(weight.numel() for weight in alone.policy.model.parameters())
    assert held <= 0.51 * total


def shares_of_a_critic(replicas: Replicas) -> None:
    """Values and weights of a critic are those of one process, and each replica computes a share of the rows."""
    _shares_of_a_critic(replicas, shared)


def shares_of_a_divided_critic(replicas: Replicas) -> None:
    """The same with weights that are divided."""
    _shares_of_a_critic(replicas, divided)


def _shares_of_a_critic(replicas: Replicas, make: Callable[[Policy, Replicas], Policy]) -> None:
    batch = prepared()
    batch = batch.with_(truncated=torch.arange(len(batch)) % 3 > 0)
    returns = torch.rand(batch.token_ids.shape, generator=torch.Generator().manual_seed(1))
    for critic_of in (own_model, own_head):
        alone, critic = (critic_of(policy, lr=1e-3) for policy in (fresh(), make(fresh(), replicas)))
        hidden, rows = critic.forward.hidden, list[int]()

        def counted(micro: Batch) -> tuple[Tensor, Tensor]:
            rows.append(len(micro))  # noqa: B023
            return hidden(micro)  # noqa: B023

        critic.forward.hidden = counted  # type: ignore[method-assign]
        for _ in range(3):
            values = alone.values(batch)
            torch.testing.assert_close(critic.values(batch), values, rtol=0, atol=1e-5)
            torch.testing.assert_close(critic.end_values(batch), alone.end_values(batch), rtol=0, atol=1e-5)
            rows.clear()
            taught = batch.with_(values=values, returns=returns)
            assert critic.update(taught) == pytest.approx(alone.update(taught), rel=1e-4, abs=1e-5)
            assert 0 < sum(rows) < 0.7 * len(batch)
        assert alone.end_values(batch).any()
        found = whole(critic.state())["weights"]
        for name, weight in alone.state()["weights"].items():
            torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-5)


def divided_state(replicas: Replicas) -> None:
    """What the replicas save together is whole, and a divided model goes on from it with the same bits."""
    objective, batch = grpo(beta=0.1), prepared()
    first = divided(fresh(), replicas)
    first.update(batch, objective)
    saved, weights_then = copy.deepcopy(whole(first.state())), whole(first.model.state_dict())
    first.update(batch, objective)

    again = fresh()
    again.model.load_state_dict(weights_then)
    second = divided(again, replicas)
    second.load_state(saved)
    second.update(batch, objective)
    for name, weight in whole(first.model.state_dict()).items():
        assert torch.equal(weight, whole(second.model.state_dict())[name]), name


def samples_of_parts(replicas: Replicas) -> None:
    """Each replica samples its part of the answers with all weights, however long they are, and drops them again."""
    policy = divided(fresh(), replicas)
    alone = BuiltinEngine(fresh()).generate(requests((1, 3, 17)), SamplingParams())
    engine = ReplicatedEngine(BuiltinEngine(policy), replicas)
    for _ in range(2):
        assert [each.token_ids for each in engine.generate(requests((1, 3, 17)), SamplingParams())] == [
            each.token_ids for each in alone
        ]
        assert all(is_sharded(weight) for weight in policy.model.parameters())
