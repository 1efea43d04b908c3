"""A call that may never return is given up, and what it returns or raises in time is passed on."""

import threading

import pytest

from outdo.utils.deadline import within


def test_the_result_or_the_error_of_the_work_is_passed_on():
    assert within(600, lambda: 3) == 3
    assert within(600, lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        within(600, lambda: 1 // 0)


def test_the_thread_of_lasting_work_stays_and_does_not_keep_the_process():
    thread = within(600, threading.current_thread, lasting=True)
    thread.join(0.05)
    assert thread.is_alive()
    assert thread.daemon
    with pytest.raises(ZeroDivisionError):
        within(600, lambda: 1 // 0, lasting=True)


def test_work_that_does_not_return_is_given_up():
    gate = threading.Event()
    with pytest.raises(TimeoutError, match=r"no result after 0.05 s"):
        within(0.05, lambda: gate.wait(30))
    (given_up,) = [each for each in threading.enumerate() if each.name == "outdo deadline"]
    assert given_up.daemon  # so that it does not keep the process
    gate.set()
    given_up.join(600)
