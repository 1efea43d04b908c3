"""The engine with a real vLLM on a CPU. `make vllm` creates its environment; without one these tests are skipped.

CI_NEEDS_VLLM makes them fail instead.
"""

import copy
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_cases import requests

from outdo.config.recipe import Piece
from outdo.extras.remote_engines.proof import BFLOAT16, FLOAT32, Bound, Proof, fixed_sequences
from outdo.extras.remote_engines.remote import RemoteEngine
from outdo.extras.vllm import process
from outdo.extras.vllm.engine import VllmEngine
from outdo.extras.vllm.process import ProcessServer
from outdo.models.adapter import adapter_config, trained_weights
from outdo.models.policy import Policy
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.run.assemble.engines import named_engine
from outdo.testing import tiny_model
from outdo.types import Batch, FinishReason
from outdo.utils.errors import DeliveryError

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("OUTDO_VLLM_PYTHON", str(ROOT / ".venv-vllm/bin/python"))
STALE = ROOT / "tests/support/stale_server.py"
SAMPLING = SamplingParams(max_tokens=12)

pytestmark = pytest.mark.skipif(
    not Path(PYTHON).is_file() and not os.environ.get("CI_NEEDS_VLLM"),
    reason=f"no vLLM: `make vllm` creates an environment, and OUTDO_VLLM_PYTHON may name another; there is no {PYTHON}",
)


def opened(policy: Policy, faults: Path, bound: Bound = FLOAT32, **options: str) -> RemoteEngine:
    """An engine whose updates have the fault that is in the file."""
    process.ENVIRONMENT |= {"STALE": str(faults), "OUTDO_SERVER": str(process.SERVER)}
    server = ProcessServer(PYTHON, options, timeout=1800, server=STALE)
    engine = RemoteEngine(lambda view: VllmEngine(server, view, seed=3), policy, Proof(bound))
    engine.update_weights(policy)
    return engine


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Policy, RemoteEngine, Path]]:
    """A policy with a tied head, all of whose weights are delivered."""
    model, tokenizer = tiny_model(hidden=128)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    policy, faults = Policy(model, tokenizer), tmp_path_factory.mktemp("whole") / "fault"
    faults.write_text("")
    engine = opened(policy, faults)
    yield policy, engine, faults
    engine.close()


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Policy, RemoteEngine, Path]]:
    """A policy with a LoRA adapter, which is delivered alone."""
    folder = tmp_path_factory.mktemp("adapted")
    tiny_model(folder / "base", hidden=128)
    policy = Policy.load(folder / "base", adapter=adapter_config("lora", r=8))
    (folder / "fault").write_text("")
    engine = opened(policy, folder / "fault")
    yield policy, engine, folder / "fault"
    engine.close()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Policy, RemoteEngine, Path]]:
    """A policy in float32, and vLLM in bfloat16."""
    policy, faults = Policy(*tiny_model(hidden=128)), tmp_path_factory.mktemp("narrow") / "fault"
    faults.write_text("")
    engine = opened(policy, faults, BFLOAT16, dtype="bfloat16")
    yield policy, engine, faults
    engine.close()


def moved(policy: Policy, size: float = 0.02) -> Policy:
    """The policy after another optimiser step, in a random direction."""
    torch.manual_seed(policy.version)
    with torch.no_grad():
        for weight in trained_weights(policy.model).values():
            weight.add_(torch.randn_like(weight) * size)
    policy.optimiser.steps += 1
    return policy


def test_the_log_probabilities_of_answers_are_those_of_the_policy(whole):
    policy, engine, _ = whole
    batch = requests(siblings=2)
    for temperature in (1.0, 0.6, 0.0):
        answers = engine.generate(batch, replace(SAMPLING, temperature=temperature))
        trained = Batch.of_tokens(
            [each.token_ids for each in batch],
            [each.token_ids for each in answers],
            temperature=[temperature or 1.0] * len(batch),
        )
        expected = policy.logprobs(trained)[trained.loss_mask]
        actual = torch.tensor([logprob for each in answers for logprob in each.logprobs])
        assert (expected - actual).abs().max() < 1e-4


def test_an_answer_depends_on_its_stream_and_not_on_the_other_requests(whole):
    _, engine, _ = whole
    batch = requests(siblings=2)
    together = engine.generate(batch, SAMPLING)
    assert engine.generate(batch, SAMPLING) == together
    alone = [engine.generate([request], SAMPLING)[0] for request in batch[:3]]
    assert [each.token_ids for each in alone] == [each.token_ids for each in together[:3]]
    other = [replace(each, stream=each.stream._replace(step=9)) for each in batch]
    assert [each.token_ids for each in engine.generate(other, SAMPLING)] != [each.token_ids for each in together]


def test_an_answer_ends_at_an_end_token_a_text_or_the_limit(whole):
    _, engine, _ = whole
    (request,) = requests()[:1]
    (free,) = engine.generate([request], SAMPLING)
    assert free.finish_reason is FinishReason.length
    token = free.token_ids[3]
    (ended,) = engine.generate([request], replace(SAMPLING, stop_token_ids=(token,)))
    assert ended.finish_reason is FinishReason.stop
    assert ended.token_ids == free.token_ids[: free.token_ids.index(token) + 1]


def test_each_of_five_deliveries_of_all_weights_is_proved(whole):
    policy, engine, _ = whole
    for _ in range(5):
        engine.update_weights(moved(policy))
        assert engine.version == policy.version
        assert engine.proof.last < 3e-5


@pytest.mark.parametrize("kind", ["whole", "adapted"])
def test_vllm_that_sleeps_wakes_in_the_order_that_it_wants_and_has_the_new_weights(request, kind):
    """On a CPU it releases no memory, but counts what sleeps, and answers nothing until all of it is awake."""
    policy, engine, _ = request.getfixturevalue(kind)
    engine.engine.server.sleeps = True
    try:
        for _ in range(3):
            assert engine.sleep()
            engine.update_weights(moved(policy))
            assert engine.proof.last < 3e-5
            assert {each.policy_version for each in engine.generate(requests(), SAMPLING)} == {policy.version}
    finally:
        engine.engine.server.sleeps = False
    assert engine.restarts == 0


@pytest.mark.parametrize("fault", ["no load", "tied head", "wrong tensor", "prefix cache"])
def test_a_stale_delivery_of_all_weights_is_stopped(whole, fault):
    policy, engine, faults = whole
    faults.write_text(fault)
    if fault == "wrong tensor":  # they have to differ
        torch.nn.init.normal_(policy.model.model.layers[0].input_layernorm.weight, 1.0, 0.3)
    try:
        with pytest.raises(DeliveryError) as raised:
            engine.update_weights(moved(policy, 0.1))
    finally:
        faults.write_text("")
        engine.update_weights(policy)
    causes = {"no load": "still has the weights", "prefix cache": "prefix cache"}
    assert causes.get(fault, "a part of the weights did not arrive") in str(raised.value)


def test_each_of_five_versions_of_an_adapter_is_that_of_peft(adapted):
    """Both are as far from the same model in float64, up to rounding: 1e-5 nats at tokens of up to -15 nats."""
    policy, engine, _ = adapted
    sequences = torch.tensor(fixed_sequences(policy))

    def by_peft(dtype: torch.dtype) -> torch.Tensor:
        model = copy.deepcopy(policy.model).to(dtype)
        with torch.no_grad():
            logprobs = model(input_ids=sequences, use_cache=False).logits.log_softmax(-1)
        return logprobs[:, :-1].gather(-1, sequences[:, 1:, None])[..., 0].double()

    for _ in range(5):
        engine.update_weights(moved(policy))
        assert engine.proof.last < 3e-5
        served = torch.tensor(engine.score(sequences.tolist())).double()
        exact, peft = by_peft(torch.float64), by_peft(torch.float32)
        far, peft_far = (float((each - exact).abs().max()) for each in (served, peft))
        print(f"to PEFT {float((served - peft).abs().max()):.2g}; to float64: vLLM {far:.2g}, PEFT {peft_far:.2g}")
        assert far < 1.5e-5
        assert float((served - peft).abs().mean()) < 3e-6


def test_each_of_five_deliveries_in_bfloat16_is_proved_and_one_that_does_not_arrive_is_found(narrow):
    policy, engine, faults = narrow
    for _ in range(5):
        engine.update_weights(moved(policy))
        assert 1e-3 < engine.proof.last < BFLOAT16.largest / 2
    faults.write_text("no load")
    with pytest.raises(DeliveryError, match="still has the weights"):
        engine.update_weights(moved(policy, 0.1))


@pytest.mark.parametrize("fault", ["no adapter", "same id", "in place"])
def test_a_stale_delivery_of_an_adapter_is_stopped(adapted, fault):
    policy, engine, faults = adapted
    faults.write_text(fault)
    try:
        with pytest.raises(DeliveryError) as raised:
            engine.update_weights(moved(policy, 0.1))
    finally:
        faults.write_text("")
        engine.update_weights(policy)
    assert ("prefix cache" if fault == "in place" else "still has the weights") in str(raised.value)


def test_an_option_that_vllm_does_not_have_is_found_without_starting_it():
    wrong = f'{{name = "vllm", python = "{PYTHON}", max_num_seq = 8}}'
    with pytest.raises(ValueError, match=r"engine.max_num_seq: unknown option; did you mean max_num_seqs\?"):
        named_engine(wrong)
    right = named_engine(wrong.replace("max_num_seq ", "max_num_seqs "))
    assert right == Piece(name="vllm", options={"python": PYTHON, "max_num_seqs": 8})
