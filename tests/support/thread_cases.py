"""One computation again and again in a process with several threads, beside a busy one: are its bits equal?"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
from engine_cases import VOCABULARY, other_model, rollout, tokens
from peft import LoraConfig
from run_cases import PATIENCE, WARM
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.algorithms.objectives.presets import grpo, likelihood
from outdo.algorithms.requirements import Requires
from outdo.config.names import OBJECTIVES
from outdo.data.prompts import Prompts, tokenise
from outdo.data.questions import Question
from outdo.extras.reward_models.model import RewardModel
from outdo.extras.sft.sft import supervised
from outdo.extras.sft.sft_examples import SftTokens
from outdo.loop import in_turn, train
from outdo.models.bundle import Models
from outdo.models.critic import own_model
from outdo.models.device import make_deterministic
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.reference import frozen
from outdo.models.teacher import Teacher, read_by
from outdo.rewards.comparisons import Comparison
from outdo.rewards.in_process import InProcessReward
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.testing import byte_bpe_tokenizer, tiny_model
from outdo.types import Batch, Group, Prompt
from outdo.utils.imports import resolve

TIMES = 20
ANSWERS = 256
HIDDEN = 96  # x 512 tokens: more than the 32,768 elements from which torch divides the work among threads
Compute = Callable[[], Iterable[Tensor]]
Cases = Callable[[Path], Mapping[str, Compute]]


def different_bits(
    folder: Path, cases: Cases, threads: int, *, deterministic: bool = False, times: int = TIMES
) -> dict[str, int]:
    """How many different results `times` equal computations have, for each of the cases, in a process of their own."""
    found = folder / f"found-{threads}.json"
    process = WARM.Process(target=_count, args=(folder, cases, threads, deterministic, times, found))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    return json.loads(found.read_text())


def _count(folder: Path, cases: Cases, threads: int, deterministic: bool, times: int, found: Path) -> None:
    torch.set_num_threads(threads)
    if deterministic:
        make_deterministic("cpu")
    counted = {name: different_results(compute, times) for name, compute in cases(folder).items()}
    found.write_text(json.dumps(counted))


def different_results(compute: Compute, times: int) -> int:
    """How many different results `times` equal computations have, beside a busy thread."""
    with _busy_thread():
        return len({_hash(compute()) for _ in range(times)})


def _hash(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _busy_thread():
    ended = Event()

    def work() -> None:
        x = torch.ones(20_000)  # too few for more than this thread
        while not ended.is_set():
            x.sin()

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# ------------------------------------------------------------------------------------------------------------ updates


def crowd(policy: Policy, answers: int = ANSWERS) -> Batch:
    """A batch of many short answers to one prompt, whose last hidden state each of them takes, ready for an update."""
    rollouts = [rollout(tokens(2, index), reward=float(index % 2)) for index in range(answers)]
    prompt = Prompt(id="0", text="", token_ids=tokens(5, answers))
    batch = per_token(group_standardised)(Batch.from_groups([Group(prompt=prompt, rollouts=tuple(rollouts))]))
    now = policy.logprobs(batch)
    noise = torch.randn(now.shape, generator=torch.Generator().manual_seed(3))
    past, reference = ((now + 0.1 * each) * batch.loss_mask for each in (noise, noise.roll(1, 0)))
    return batch.with_(
        old_logprobs=past, ref_logprobs=reference, rollout_logprobs=past, values=past, returns=batch.advantages
    )


def wide_policy(**how: Any) -> Policy:
    """A policy of one layer."""
    model, tokenizer = tiny_model(hidden=HIDDEN, layers=1, vocab=VOCABULARY)
    return Policy(model, tokenizer, **how)


def gradients(model: nn.Module, optimiser: Any, update: Callable[[], object]) -> list[Tensor]:
    """The gradients that an update hands to its optimiser, which makes no step."""
    found: list[Tensor] = []

    def step(loss: float) -> dict[str, float]:
        found.extend(weight.grad.clone() for weight in model.parameters() if weight.grad is not None)
        model.zero_grad()
        return {"updates/grad_norm": 0.0}

    own, optimiser.step = optimiser.step, step
    try:
        update()
    finally:
        optimiser.step = own
    assert any(bool(each.any()) for each in found)
    return found


def update_of(policy: Policy, batch: Batch, objective: Any) -> Compute:
    batch = objective.prepare(batch) if hasattr(objective, "prepare") else batch
    heads: dict[str, Any] = {}
    if getattr(objective, "requires", Requires()).divergences:
        teacher = Teacher.of(frozen(wide_policy()))
        batch, heads = read_by([teacher], batch, states=True), {teacher.name: teacher.head()}
    return partial(gradients, policy.model, policy.optimiser, partial(policy.update, batch, objective, heads))


SOME = ("grpo", "gspo", "target")


def some_objectives(folder: Path, names: Iterable[str] = SOME) -> Mapping[str, Compute]:
    """One update of each of these methods."""
    policy = wide_policy()
    batch = crowd(policy)
    options = {"dr_grpo": {"length": 2}}
    return {name: update_of(policy, batch, resolve(OBJECTIVES[name])(**options.get(name, {}))) for name in names}


def every_objective(folder: Path) -> Mapping[str, Compute]:
    """One update of each method that has a name."""
    return some_objectives(folder, OBJECTIVES)


def real_model(model: Path, folder: Path) -> Mapping[str, Compute]:
    """One update of a pretrained model, whose width needs no more than 64 answers for a race."""
    policy = Policy.load(model, device="cpu")
    return {"SmolLM2": update_of(policy, crowd(policy, answers=64), grpo())}


def indexed(folder: Path) -> Mapping[str, Compute]:
    """The gradient of `x[indices]`, where the same few rows are taken again and again."""
    x = torch.arange(500.0 * HIDDEN).view(500, HIDDEN).sin().requires_grad_()
    indices = torch.arange(4000) % 7

    def compute() -> Iterable[Tensor]:
        return torch.autograd.grad(x[indices].square().cumsum(0).sum(), x)

    return {"x[indices]": compute}


def other_trainings(folder: Path) -> Mapping[str, Compute]:
    """One update of a critic, a reward model and supervised fine-tuning."""
    policy = wide_policy()
    batch = crowd(policy)
    critic = own_model(policy)
    nn.init.ones_(critic.head.weight)
    reward_model = a_reward_model()
    ranked = Comparison(prompt="1+1=", completions=tuple("ab" * n for n in range(30, 38)), values=tuple(range(8)))
    return {
        "critic": partial(gradients, critic.trained, critic.optimiser, partial(critic.update, batch)),
        "reward model": partial(
            gradients, reward_model.model, reward_model.optimiser, partial(reward_model.update, [ranked])
        ),
        "SFT": update_of(policy, supervised(examples()), likelihood()),
    }


def a_reward_model() -> RewardModel:
    model, tokenizer = tiny_model(hidden=HIDDEN, layers=1, vocab=VOCABULARY)
    config = model.config
    config.num_labels = 1
    torch.manual_seed(0)
    return RewardModel(AutoModelForSequenceClassification.from_config(config).eval(), tokenizer)


def examples() -> list[SftTokens]:
    """Examples that begin alike."""
    start = tokens(5, 0)
    return [SftTokens(token_ids=(*start, *tokens(2, n)), learned=(False,) * 5 + (True,) * 2) for n in range(ANSWERS)]


def frozen_bases(folder: Path) -> Mapping[str, Compute]:
    """One update of an adapter on weights that are stored in each way."""
    tiny_model(folder / "model", hidden=HIDDEN, layers=1, vocab=VOCABULARY)
    found: dict[str, Compute] = {}
    for stored in ("float32", "bfloat16", "int8", "nf4"):
        policy = Policy.load(folder / "model", adapter=LoraConfig(r=4, lora_alpha=8), weights=stored, device="cpu")
        found[f"LoRA, {stored}"] = update_of(policy, crowd(policy), grpo(beta=0.0))
    return found


def mixtures(folder: Path) -> Mapping[str, Compute]:
    """One update of models whose own code gives a token to several experts."""
    found: dict[str, Compute] = {}
    for arch in ("mixtral", "qwen3_moe"):
        changes = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        model = other_model(arch, hidden_size=HIDDEN, num_hidden_layers=1, head_dim=24, **changes)
        policy = Policy(model, byte_bpe_tokenizer([], VOCABULARY))
        found[arch] = update_of(policy, crowd(policy), grpo(beta=0.0))
    return found


def python_loop(folder: Path) -> Mapping[str, Compute]:
    """The weights after two steps of the loop."""

    def score(completion: str) -> float:
        return float(len(completion) % 3)

    def weights() -> list[Tensor]:
        policy = wide_policy(optimiser=OptimiserSettings(lr=1e-3))
        asked = tokenise([Question(id="0", text="1+1=", answer="2", columns={})], policy.tokenizer)
        engine, environment = BuiltinEngine(policy, seed=1), SingleTurn(InProcessReward(score))
        sampler = GroupSampler(engine, environment, group_size=ANSWERS, sampling=SamplingParams(max_tokens=2))
        rollouts = in_turn(policy, Prompts(asked, per_step=1, seed=1), sampler)
        for step in train(Models(policy), rollouts, per_token(group_standardised), grpo(beta=0.0)):
            if step.index == 2:
                break
        return list(policy.model.parameters())

    return {"weights": weights}
