"""The sandbox that attacks are tried on. It is not probed here: the probe is a guard of its own."""

import os
import shutil

import pytest

from outdo.rewards.sandbox import Ending, Sandbox, bubblewrap


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    reason = "bwrap is not installed"
    if shutil.which("bwrap"):
        for each in bubblewrap.bubblewraps():
            outcome = each.run("print(1)")
            if outcome.ending is not Ending.infrastructure:
                return each
            reason = outcome.stderr
    elif os.environ.get("CI_NEEDS_SANDBOX") == "1":
        pytest.fail(reason)
    pytest.skip(f"no namespaces on this machine: {reason}")
