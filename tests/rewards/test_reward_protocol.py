"""Whatever a reward function does to its worker, no completion gets the value of another."""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from outdo.rewards import Reward, RewardInput
from outdo.utils.child import ChildLostError

Make = Callable[..., Reward]
Sample = Callable[..., RewardInput]

SOURCE = """
import gc, os, socket, subprocess, sys, threading, time

def socket_of_worker():
    return next(each for each in gc.get_objects() if type(each) is socket.socket)

def write_everywhere(data):
    for descriptor in range(3, 60):
        try:
            os.write(descriptor, data)
        except OSError:
            pass

def nonce_of(frame):
    return frame.f_locals["nonce"] if "nonce" in frame.f_locals else nonce_of(frame.f_back)

def score(completion, answer):
    value = float(answer)
    if completion == "fork" and os.fork() == 0:
        return -1.0
    if completion == "fork and exit" and os.fork() == 0:
        sys.exit(0)
    if completion == "fork and raise" and os.fork() == 0:
        raise ValueError
    if completion == "fork and write" and os.fork() == 0:
        time.sleep(0.01)
        write_everywhere(b"x" * 1000)
        os._exit(0)
    if completion == "write":
        write_everywhere(b"x" * 1000)
    if completion == "write a number":
        write_everywhere(b"\\0" * 7 + b"\\2" + b"\\0" * 16 + b"{}")
    if completion == "repeat the response":
        sent = socket_of_worker().sendall
        body = b'{"outputs": [[-1.0, "ok", ""]]}'
        message = len(body).to_bytes(8, "big") + nonce_of(sys._getframe()) + body
        threading.Timer(0.2, sent, (message,)).start()
    if completion == "write later":
        threading.Timer(0.01, write_everywhere, (b"x" * 1000,)).start()
    if completion == "exit later":
        threading.Timer(0.01, os._exit, (0,)).start()
    if completion == "print":
        os.write(1, b"x" * 10**6)
    if completion == "exit":
        os._exit(0)
    if completion == "hang":
        time.sleep(1000)
    return value
"""
HARMLESS = ["good", "fork", "fork and exit", "fork and raise", "fork and write", "print"]
"""Completions that get their own value, whatever those before them did."""
SPOILT = ["write", "write a number", "repeat the response", "write later", "exit later", "exit", "hang"]
"""Completions that get their own value or none."""


def out_of_place(reward: Reward, sample: Sample, kinds: list[str]) -> Counter[str]:
    """Score the completions, each with a value of its own; count the kinds of those with a wrong verdict."""
    outputs = reward([sample(kind, answer=index) for index, kind in enumerate(kinds)])
    wrong = Counter[str]()
    for index, (kind, output) in enumerate(zip(kinds, outputs, strict=True)):
        own = output.status == "ok" and output.value == index
        forged = kind == "repeat the response" and output.value == -1.0  # it may be earlier than the response itself
        if not own and not forged and (kind in HARMLESS or not output.status.is_failure):
            wrong[f"{kind}: {output.status} {output.reason}"] += 1
    return wrong


def mixture(count: int, share: float, hangs: int) -> list[str]:
    """`count` completions in random order, of which the share `share` is not good, besides `hangs` that hang."""
    rng = random.Random(0)
    faults = [kind for kind in [*HARMLESS, *SPOILT] if kind not in ("good", "hang")]
    kinds = [rng.choice(faults) if rng.random() < share else "good" for _ in range(count - hangs)] + ["hang"] * hangs
    rng.shuffle(kinds)
    return kinds


@pytest.mark.parametrize("kind", [*HARMLESS, *SPOILT])
def test_each_fault_leaves_the_verdicts_of_others_in_place(reward_of: Make, sample: Sample, kind: str):
    reward = reward_of(SOURCE, timeout=3.0 if kind == "hang" else 600.0)
    assert not out_of_place(reward, sample, ["good", "good", kind, "good", "good", kind, *["good"] * 50])


@pytest.mark.parametrize(("workers", "hangs"), [(3, 0), pytest.param(3, 1, marks=pytest.mark.release)])
def test_hundreds_of_calls_with_forks_floods_and_hangs_have_no_verdict_out_of_place(
    reward_of: Make, sample: Sample, workers: int, hangs: int
):
    reward = reward_of(SOURCE, timeout=20.0, workers=workers)
    assert not out_of_place(reward, sample, mixture(200, share=0.1, hangs=hangs))


@pytest.mark.long
def test_ten_thousand_calls_with_forks_floods_and_hangs_have_no_verdict_out_of_place(reward_of: Make, sample: Sample):
    reward = reward_of(SOURCE, timeout=20.0)
    kinds = mixture(10_000, share=0.1, hangs=10)
    for first in range(0, len(kinds), 500):
        assert not out_of_place(reward, sample, kinds[first : first + 500])


def process_of(reward: Any) -> Any:
    return reward._workers[0]._process


def test_a_response_that_arrives_after_its_call_is_not_taken_for_the_next(reward_of: Make, sample: Sample):
    reward = reward_of(SOURCE)
    reward([sample("repeat the response", answer=1)])
    process = process_of(reward)
    assert process.socket.recv(1, 2)  # MSG_PEEK: wait until the surplus response is there
    with pytest.raises(ChildLostError, match="before it received the request"):
        process.request(b"", 600.0, 1000)
    assert reward([sample("good", answer=2)])[0].value == 2.0
    assert process_of(reward) is not process


def test_a_response_with_another_nonce_is_refused(reward_of: Make, sample: Sample):
    reward = reward_of(SOURCE)
    output = reward([sample("write a number", answer=1)])[0]
    assert (output.status, output.reason) == (
        "failed",
        "score ended the worker: its response does not belong to the request",
    )


@pytest.mark.parametrize("kind", ["fork", "fork and exit", "fork and raise", "fork and write"])
def test_a_fork_has_no_socket_and_ends_in_silence(
    reward_of: Make, sample: Sample, kind: str, capfd: pytest.CaptureFixture[str]
):
    reward = reward_of(SOURCE)
    process = process_of(reward)
    assert not out_of_place(reward, sample, [kind, "good"] * 10)
    assert process_of(reward) is process
    assert capfd.readouterr().err == ""


def test_an_interrupt_ends_concurrent_calls_and_the_reward_can_be_used_again(reward_of: Make, sample: Sample):
    reward = reward_of(SOURCE, workers=3)
    threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        reward([sample("hang")] * 3)
    assert [output.value for output in reward([sample("good", answer=each) for each in range(3)])] == [0.0, 1.0, 2.0]
