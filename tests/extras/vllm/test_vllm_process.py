"""The process of the vLLM engine, with a server in place of vLLM: what it is sent, and what happens when it fails."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from engine_cases import fresh, other_model, requests
from run_cases import alive, wait_until

from outdo.extras.remote_engines.proof import FLOAT32, Proof
from outdo.extras.remote_engines.remote import RemoteEngine
from outdo.extras.vllm import process, weights
from outdo.extras.vllm.engine import VllmEngine
from outdo.extras.vllm.process import ProcessServer
from outdo.models.adapter import adapter_config, attach, set_base
from outdo.models.policy import Policy
from outdo.models.scorer import sequence_logprobs
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import tiny_model
from outdo.types import FinishReason
from outdo.utils.errors import EngineError, EngineLostError

STAND_IN = Path(__file__).parents[2] / "support" / "stand_in_server.py"
SAMPLING = SamplingParams(max_tokens=12)
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
SILENCE = 1.0  # seconds until a stopped process is killed


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setitem(process.ENVIRONMENT, "STAND_IN", str(tmp_path / "faults"))
    monkeypatch.setitem(process.ENVIRONMENT, "OUTDO_SERVER", str(process.SERVER))
    made = ProcessServer(sys.executable, {}, timeout=600, server=STAND_IN)
    yield made
    made.close()


@pytest.fixture
def engine(server):
    policy = fresh()
    made = VllmEngine(server, policy)
    made.update_weights(policy)
    return made


def inject(tmp_path: Path, *faults: str) -> None:
    (tmp_path / "faults").write_text(" ".join(faults))


def test_requests_and_answers_go_through_the_process(engine):
    batch = requests(siblings=2)
    answers = engine.generate(batch, SAMPLING)
    assert [len(each.token_ids) for each in answers] == [min(12, each.max_tokens) for each in batch]
    assert {each.finish_reason for each in answers} == {FinishReason.length}
    assert engine.generate(batch, SAMPLING) == answers
    assert engine.generate(batch[3:4], SAMPLING) == answers[3:4]  # an answer does not depend on the other requests
    assert len({each.token_ids for each in answers}) > 1
    assert engine.generate([], SAMPLING) == []
    engine.health()


def test_an_adapter_is_served_on_the_commit_of_its_base_on_the_hub(monkeypatch):
    model, _ = tiny_model()
    attach(model, adapter_config("lora", r=2))
    set_base(model, "/models/base", None)
    assert weights.base_folder(model) == "/models/base"
    set_base(model, "me/small", "0123abc")
    monkeypatch.setattr(weights, "cached_snapshot", {"me/small@0123abc": Path("/hub/0123abc")}.get)
    assert weights.base_folder(model) == "/hub/0123abc"


def test_new_weights_replace_the_old_ones(engine):
    policy, batch = engine.policy, requests()
    before = engine.generate(batch, SAMPLING)
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(1.5)
    policy.optimiser.steps = 7
    engine.update_weights(policy)
    after = engine.generate(batch, SAMPLING)
    assert [each.token_ids for each in after] != [each.token_ids for each in before]
    assert {each.policy_version for each in after} == {7}
    assert engine.version == 7


FAULTS = {
    "die": "is lost: exit status 3",
    "fail": "failed: RuntimeError: HTTP 500",
    "garbage": "is lost: its response|gave no sign of life|did not .* send a response",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_process_that_fails_is_killed_and_named(engine, tmp_path, fault):
    inject(tmp_path, fault)
    with pytest.raises(EngineLostError, match=FAULTS[fault]):
        engine.generate(requests(), SAMPLING)
    assert engine.server.child is None


@pytest.mark.parametrize("fault", ["stop", "stall"])
def test_a_process_that_hangs_is_killed_after_the_timeout(engine, tmp_path, fault):
    inject(tmp_path, fault)
    engine.server.timeout = SILENCE
    began = time.monotonic()
    with pytest.raises(EngineLostError, match=r"gave no sign of life|made no progress"):
        engine.generate(requests(), SAMPLING)
    assert time.monotonic() - began < 600
    assert engine.server.child is None


def test_an_answer_to_another_request_is_dropped(engine, tmp_path):
    expected = engine.generate(requests(), SAMPLING)
    inject(tmp_path, "nonce")
    assert engine.generate(requests(), SAMPLING) == expected


def test_a_lost_process_is_replaced_and_answers_the_same_requests_alike(engine, tmp_path):
    separate = RemoteEngine(lambda _: engine, engine.policy, Proof(FLOAT32))
    separate.proof.check = lambda *how: None  # the stand-in is no model
    separate.update_weights(engine.policy)
    expected, first = separate.generate(requests(), SAMPLING), engine.server.child.pid
    inject(tmp_path, "die")
    assert separate.generate(requests(), SAMPLING) == expected
    assert engine.server.child.pid not in (None, first)
    assert separate.restarts == 1


def test_options_that_are_refused_are_an_error_with_the_reason(server):
    server.options["refuse"] = True
    policy = fresh()
    with pytest.raises(EngineError, match="ValueError: no such option") as raised:
        VllmEngine(server, policy).update_weights(policy)
    assert not isinstance(raised.value, EngineLostError)


def test_an_interpreter_that_cannot_be_run_is_an_error_with_the_reason(tmp_path):
    server = ProcessServer(str(tmp_path / "python"), {}, timeout=600)
    with pytest.raises(EngineError, match=r"cannot be started\n +/.*/python: No such file or directory$") as raised:
        server.start_process({})
    assert not isinstance(raised.value, EngineLostError)


def test_a_call_in_another_thread_ends_when_the_engine_is_closed(engine, tmp_path):
    inject(tmp_path, "stall")
    pid = engine.server.child.pid
    with ThreadPoolExecutor() as threads:
        call = threads.submit(engine.generate, requests(), SAMPLING)
        wait_until(lambda: not (tmp_path / "faults").read_text(), seconds=600)
        engine.close()
        with pytest.raises(EngineLostError, match=rf"process {pid}\) is lost: the trainer has ended it"):
            call.result()


def test_the_process_does_not_take_itself_for_a_replica(engine, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    engine.update_weights(engine.policy)
    variables = Path(f"/proc/{engine.server.child.pid}/environ").read_bytes().split(b"\0")
    assert not [each for each in variables if each.endswith(b"=2") and (b"RANK" in each or b"WORLD" in each)]
    assert any(each.startswith(b"PATH=") for each in variables)


@pytest.mark.release
def test_the_process_ends_with_the_process_that_started_it(tmp_path, server):
    script = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from outdo.extras.vllm.process import ENVIRONMENT, ProcessServer
ENVIRONMENT |= {process.ENVIRONMENT!r}
server = ProcessServer(sys.executable, {{}}, timeout=600, server={str(STAND_IN)!r})
server.start_process({{}})
print(server.child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_until(lambda: not alive(int(done.stdout)), seconds=600)


# ------------------------------------------------------------------------------------------------- what is delivered


def start_of(options):
    """The model to which an adapter with these options is attached, and its tokenizer."""
    model, tokenizer = tiny_model()
    mixture = "target_parameters" in options
    return (other_model("qwen3_moe", num_experts=4, num_experts_per_tok=2) if mixture else model), tokenizer


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"r": 4}, ""),
        ({"r": 4, "use_dora": True}, "LoRA with use_dora"),
        ({"r": 4, "target_modules": ["q_proj", "lm_head"]}, "changes lm_head"),
        ({"r": 4, "init_lora_weights": "pissa"}, "has changed the base"),
        ({"r": 4, "trainable_token_indices": [7, 8]}, "LoRA with trainable_token_indices"),
        ({"r": 4, "target_parameters": EXPERTS}, "LoRA with target_parameters"),
    ],
)
def test_an_adapter_that_vllm_does_not_serve_is_merged(options, why):
    model, tokenizer = start_of(options)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    attach(model, adapter_config("lora", **options))
    assert why in weights.why_merged(model)
    assert bool(why) == bool(weights.why_merged(model))
    for name, weight in model.named_parameters():
        if "lora_B" in name or "tokens_delta" in name:
            torch.nn.init.normal_(weight, std=0.3)
    policy = Policy(model, tokenizer)
    sequences = [list(range(5, 60))]
    merged, _ = start_of(options)
    found = weights.merged_weights(model)
    assert found.keys() == before.keys()
    merged.load_state_dict(found, strict=False)
    expected = torch.tensor(sequence_logprobs(Policy(merged, tokenizer).forward, sequences))
    assert torch.tensor(sequence_logprobs(policy.forward, sequences)).sub(expected).abs().max() < 1e-4
