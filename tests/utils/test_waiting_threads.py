"""Threads that wait fall asleep soon, unless the user says otherwise."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, sys
before = dict(os.environ)
sys.argv = ["outdo", "--version"]
from outdo.cli.main import main
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules
print(json.dumps({name: value for name, value in os.environ.items() if before.get(name) != value}))
"""


@pytest.mark.parametrize(
    ("chosen", "set_by_outdo"),
    [
        ({}, {"GOMP_SPINCOUNT": "3000"}),
        ({"GOMP_SPINCOUNT": "7"}, {}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {}),
    ],
)
def test_the_command_lets_threads_fall_asleep_before_torch_is_imported(chosen, set_by_outdo):
    inherited = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=inherited | chosen, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == set_by_outdo
