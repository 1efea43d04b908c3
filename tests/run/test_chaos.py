"""Five minutes of chaos: whatever is killed or frozen, the run ends as the one that nothing happened to."""

from pathlib import Path

import pytest

from benchmarks.chaos import CASES, differences, disturbed, undisturbed, write_home

STEPS = 100


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_run_in_chaos_ends_as_the_undisturbed_one_and_accounts_for_every_question(case: str, tmp_path: Path):
    home = write_home(tmp_path / "home")
    whole = undisturbed(home, case, STEPS)
    run, faults, left = disturbed(home, case, STEPS, seconds=300, every=20, seed=25)
    print(*faults, sep="\n")
    assert len(faults) >= 3
    assert {fault.signal for fault in faults} == {"SIGKILL", "SIGSTOP"}
    assert differences(run, whole, STEPS) == []
    assert left == []
