"""The routes of a mixture model: recorded in sampling, replayed in training."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_cases import other_model
from run_cases import outdo_, write_home
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from outdo.models.choose_forward import choose_forward
from outdo.models.forward import Forward
from outdo.models.policy import Policy
from outdo.models.reference import frozen
from outdo.models.scorer import token_scores
from outdo.rollouts.engines.base import PolicySnapshot
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import check_completions
from outdo.testing import byte_bpe_tokenizer
from outdo.types import Batch, Completion, FinishReason, Group, Prompt, Request, Rollout
from outdo.utils.errors import EngineError
from outdo.utils.rng import Stream

EXPERTS = 16
QWEN = pytest.param("qwen3_moe", marks=pytest.mark.release)
MIXTURES = pytest.mark.parametrize("arch", ["mixtral", QWEN, "glm4_moe"])  # GLM's router calls `topk` three times


def mixture(arch: str, **changes: object) -> PreTrainedModel:
    """A mixture with random weights that are large enough for experts to differ."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": 264,
        "hidden_size": 64,
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": EXPERTS,
        "num_local_experts": EXPERTS,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 1,
    }
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(arch, **shape | changes)).eval()


def policy_of(arch: str, **settings: object) -> Policy:
    return Policy(mixture(arch), byte_bpe_tokenizer([], 264), **settings)


def sampled(view: PolicySnapshot | Policy, *, routes: bool = True, prompts: int = 8) -> Batch:
    """Four answers to each of some prompts of different lengths."""
    generator = torch.Generator().manual_seed(1)
    questions = [
        Prompt(id=str(n), text="", token_ids=tuple(torch.randint(4, 260, (8 + n,), generator=generator).tolist()))
        for n in range(prompts)
    ]
    requests = [
        Request(token_ids=each.token_ids, stream=Stream("test", 0, each.id, sample), max_tokens=40)
        for each in questions
        for sample in range(4)
    ]
    # Rows are fewer than requests: answers end at different times, and others take their rows.
    found = BuiltinEngine(view, rows=12).generate(requests, SamplingParams(routes=routes, stop_token_ids=(7, 8, 9)))
    check_completions(requests, found)
    return Batch.from_groups(
        [Group(prompt=each, rollouts=tuple(map(rollout, found[4 * n : 4 * n + 4]))) for n, each in enumerate(questions)]
    )


def rollout(completion: Completion) -> Rollout:
    return Rollout(
        token_ids=completion.token_ids,
        loss_mask=(True,) * len(completion.token_ids),
        logprobs=completion.logprobs,
        text="",
        reward=0.0,
        finish_reason=completion.finish_reason,
        policy_version=0,
        routes=completion.routes,
    )


def difference(policy: Policy, batch: Batch) -> float:
    return float((policy.logprobs(batch) - batch.rollout_logprobs)[batch.loss_mask].abs().mean())


def recorded(forward: Forward, batch: Batch) -> Tensor:
    """The routes of a batch, [B, T, R, k], by a padded forward pass with the model's own code."""
    with forward.routers.recorded(forward.model) as recording, torch.no_grad():
        forward.model(input_ids=batch.token_ids, attention_mask=batch.attention_mask.long())
        return recording.last().unflatten(0, batch.token_ids.shape)


@pytest.mark.parametrize(
    ("arch", "engine_precision"),
    [("mixtral", "float32"), ("glm4_moe", "bfloat16"), pytest.param("qwen3_moe", "float32", marks=pytest.mark.release)],
)
def test_replay_halves_the_mean_difference_of_a_bfloat16_trainer_to_its_engine(arch: str, engine_precision: str):
    policy = policy_of(arch, precision="bfloat16")
    forward = policy.forward.in_float32() if engine_precision == "float32" else policy.forward
    batch = sampled(replace(PolicySnapshot.of(policy), forward=forward))
    without, with_replay = difference(policy, batch.with_(routes=None)), difference(policy, batch)
    print(f"{arch}, engine in {engine_precision}: {without:.4f} nats without replay, {with_replay:.4f} with")
    assert with_replay < (0.5 if arch == "mixtral" else 0.6) * without


@MIXTURES
def test_routes_are_those_of_each_token_that_was_computed(arch: str):
    policy = policy_of(arch)
    batch = sampled(policy, prompts=3)
    assert batch.routes.dtype == torch.int8
    known = (batch.routes >= 0).all(-1).all(-1)
    last = batch.attention_mask.sum(1) - 1  # no model computes the last token of an answer
    assert known.equal(torch.arange(batch.token_ids.shape[1]) < last[:, None])
    expected = recorded(policy.forward, batch)
    same = batch.routes[known].sort(-1).values == expected[known].sort(-1).values
    assert same.float().mean() > 0.999  # a tie of two scores is broken by rounding
    assert sampled(policy, routes=False, prompts=1).routes is None


@MIXTURES
def test_the_routes_of_a_later_turn_are_of_all_tokens_whether_they_are_kept_or_computed_again(arch: str):
    policy, sampling = policy_of(arch), SamplingParams(routes=True, max_tokens=9)
    prompts = [tuple(range(9 + n, 20 + 3 * n)) for n in range(4)]
    names = [Stream("t", 0, str(n), 0) for n in range(4)]
    first = [
        Request(token_ids=each, stream=name, max_tokens=9, prompt_length=len(each), episode=name)
        for each, name in zip(prompts, names, strict=True)
    ]
    engine = BuiltinEngine(policy)
    answers = engine.generate(first, sampling)
    later = [
        replace(one, token_ids=(*one.token_ids, *answer.token_ids, 30, 40), position=len(answer.token_ids))
        for one, answer in zip(first, answers, strict=True)
    ]
    found, again = (each.generate(later, sampling) for each in (engine, BuiltinEngine(policy)))
    assert sum(each.tokens_read for each in found) < sum(each.tokens_read for each in again)
    check_completions(later, found)
    for one, other in zip(found, again, strict=True):
        # The products of an expert have as many rows as tokens chose it, so that their last bits may differ.
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.routes.shape == other.routes.shape
        assert (one.routes.sort(-1).values == other.routes.sort(-1).values).float().mean() > 0.99


@MIXTURES
def test_given_routes_are_used_in_both_ways_and_in_every_recomputation(arch: str):
    policy = policy_of(arch)
    batch = sampled(policy, prompts=3)
    own = policy.logprobs(batch)
    torch.testing.assert_close(policy.logprobs(batch.with_(routes=None)), own, rtol=0, atol=1e-4)
    others = batch.with_(routes=((batch.routes + 1) % EXPERTS).where(batch.routes >= 0, -1))
    changed = policy.logprobs(others)
    assert (changed - own).abs().max() > 0.1

    def gradient(forward: Forward) -> tuple[Tensor, list[Tensor]]:
        forward.model.zero_grad()
        found = token_scores(forward, others).logprobs
        found.sum().backward()
        return found.detach(), [each.grad.clone() for each in forward.model.parameters()]

    plain = gradient(policy.forward)
    torch.testing.assert_close(plain[0], changed, rtol=0, atol=1e-5)
    for forward in (policy.forward.padded(), choose_forward(policy.model, gradient_checkpointing=True)):
        found = gradient(forward)
        torch.testing.assert_close(found[0], plain[0], rtol=0, atol=1e-4)
        for mine, its in zip(found[1], plain[1], strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-3)


@MIXTURES
def test_the_gradient_of_replayed_experts_reaches_the_router(arch: str):
    """Compare it with a finite difference, during which the routes stay the same."""
    policy = policy_of(arch)
    batch = sampled(policy, prompts=2)
    batch = batch.with_(routes=((batch.routes + 3) % EXPERTS).where(batch.routes >= 0, -1))
    forward = policy.forward
    router: Tensor = forward.model.get_submodule(forward.routers.routers[1].name).weight

    def mean() -> Tensor:
        return token_scores(forward, batch).logprobs[batch.loss_mask].double().mean()

    mean().backward()
    assert (router.grad.abs().sum(1) > 0).all()  # every expert was chosen for some token
    direction, step = router.grad / router.grad.norm(), 3e-3 / float(router.grad.norm())
    with torch.no_grad():
        router += step * direction
        ahead = mean()
        router -= 2 * step * direction
        behind = mean()
    assert float((ahead - behind) / (2 * step)) == pytest.approx(float(router.grad.norm()), rel=0.01)


def test_the_reference_chooses_its_own_experts():
    policy = policy_of("mixtral")
    batch = sampled(policy, prompts=2)
    reference = frozen(policy)
    expected = reference.logprobs(batch.with_(routes=None))
    others = batch.with_(routes=((batch.routes + 1) % EXPERTS).where(batch.routes >= 0, -1))
    assert reference.logprobs(others).equal(expected)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: other_model("phimoe", num_local_experts=4, num_experts_per_tok=2), "none of its modules returns"),
        (lambda: other_model("qwen3"), ""),
    ],
    ids=["phimoe", "a dense model"],
)
def test_a_model_whose_routers_cannot_be_reached_has_the_reason(make: Callable[[], PreTrainedModel], reason: str):
    forward = choose_forward(make())
    assert forward.routers is None
    assert forward.unreachable_routers.startswith(reason)
    assert bool(forward.unreachable_routers) == bool(reason)


def test_an_engine_that_returns_the_routes_of_other_tokens_is_an_error():
    request = Request(token_ids=(5, 6, 7), stream=Stream("test", 3, "q", 0), max_tokens=4)
    answer = Completion(
        token_ids=(8, 9),
        logprobs=(-1.0, -1.0),
        finish_reason=FinishReason.stop,
        policy_version=0,
        routes=torch.zeros(5, 2, 2, dtype=torch.int8),
    )
    with pytest.raises(EngineError, match="step 3, question q: the engine returned an answer with routes, and not of"):
        check_completions([request], [answer])
    check_completions([request], [replace(answer, routes=torch.zeros(4, 2, 2, dtype=torch.int8))])


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["precision=bfloat16"], "routing: training uses the experts that sampled each token"),
        pytest.param(
            ["precision=bfloat16", "attention=padded"],
            "because model.generate does not return the experts",
            marks=pytest.mark.release,
        ),
        pytest.param(["precision=float32"], "", marks=pytest.mark.release),
    ],
    ids=["bfloat16", "bfloat16, padded", "float32"],
)
def test_a_run_replays_where_sampler_and_trainer_round_differently(tmp_path: Path, arguments: list[str], note: str):
    home = write_home(tmp_path)
    mixture("mixtral", num_hidden_layers=2).save_pretrained(home / "model")
    said = outdo_(home, "train", "recipe.toml", "steps=2", "eval.every=0", "run=run", "--verbose", *arguments)
    assert (note in said) if note else ("routing" not in said)
