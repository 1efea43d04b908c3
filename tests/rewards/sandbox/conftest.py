"""The sandboxes that attacks are tried on, one of each tier. None is probed here: the probe is a guard of its own.

A test of one tier alone says so: `@pytest.mark.parametrize("sandbox", ["bubblewrap"], indirect=True)`.
"""

import os
from subprocess import CalledProcessError

import pytest

from outdo.rewards.sandbox import Ending, Sandbox, choose

TIERS = dict(choose.TIERS)  # a test may replace those of `choose`


@pytest.fixture(scope="session", params=TIERS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    reason = ""
    try:
        for each in TIERS[request.param]():
            outcome = each.run("print(1)")
            if outcome.ending is not Ending.infrastructure:
                return each
            reason = outcome.stderr
    except (OSError, CalledProcessError) as error:
        if isinstance(error, FileNotFoundError) and os.environ.get("CI_NEEDS_SANDBOX") == "1":
            pytest.fail(f"{request.param}: {error}")
        reason = str(error)
    pytest.skip(f"no {request.param} on this machine: {reason}")
