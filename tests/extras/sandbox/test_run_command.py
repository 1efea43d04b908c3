"""A command of this machine, such as a shell, runs where it can change nothing and reach nothing."""

import os
from pathlib import Path

import pytest

from outdo.extras.sandbox import Ending, Outcome, open_bubblewrap
from outdo.extras.sandbox.base import Limits

PLACE = "/home/somebody/project"


def bash(script: str, *, visible: tuple[str, ...] = (), limits: Limits | None = None, **files: str) -> Outcome:
    texts = {f"{PLACE}/run.sh": script} | {f"{PLACE}/{name}": text for name, text in files.items()}
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/home/somebody", "NAME": "value"}
    options = {} if limits is None else {"limits": limits}
    return open_bubblewrap().run_command(
        ["/bin/bash", f"{PLACE}/run.sh", "first"],
        files=texts,
        environment=environment,
        folder=PLACE,
        visible=visible,
        **options,
    )


def test_a_script_sees_its_files_its_arguments_and_the_given_environment():
    outcome = bash('pwd; cat other; echo "$1 $NAME $HOME"; ls ~ | wc -l; env | wc -l', other="text\n")
    assert outcome.ending is Ending.exited
    assert outcome.stdout.splitlines()[:4] == [PLACE, "text", "first value /home/somebody", "1"]
    assert int(outcome.stdout.splitlines()[4]) <= 7  # of bash itself: PWD, SHLVL, OLDPWD, _


def test_it_starts_commands_in_pipes_and_in_the_background_and_writes_into_its_own_file_system():
    outcome = bash("cat <<E | tr a b\naa\nE\nmkdir -p /data/x; echo 1 > /data/x/log; (cat /data/x/log) & wait\n")
    assert outcome.stdout == "bb\n1\n"
    assert not os.path.exists("/data/x/log")


def test_it_sees_no_file_of_this_machine_but_the_visible_ones_and_changes_none(tmp_path: Path):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    secret, shown = tmp_path / "secret", tmp_path / "shown"
    secret.write_text("secret")
    shown.write_text("shown")
    outcome = bash(
        f"cat {secret}; cat {shown}; echo x >> {shown}; touch /usr/bin/x; rm -f {shown}", visible=(str(shown),)
    )
    assert outcome.stdout == "shown"
    assert shown.read_text() == "shown"
    assert not os.path.exists("/usr/bin/x")


def test_it_has_no_network_and_sees_no_process_of_this_machine():
    outcome = bash(f"exec 3<>/dev/tcp/127.0.0.1/22 || echo none; kill -0 {os.getpid()} || echo no process")
    assert outcome.stdout == "none\nno process\n"


def test_what_it_printed_is_there_after_the_time_is_over():
    outcome = bash("echo before; while true; do :; done; echo after", limits=Limits(seconds=1, threads=64))
    assert outcome.ending is not Ending.exited
    assert outcome.stdout == "before\n"


def test_processes_end_with_it():
    outcome = bash("for i in 1 2 3; do (while true; do :; done) & done; echo started")
    assert (outcome.ending, outcome.stdout) == (Ending.exited, "started\n")


@pytest.mark.parametrize("script", ["yes", ":(){ :|:& };:", "head -c 100000000 /dev/zero > /tmp/x; wc -c < /tmp/x"])
def test_output_processes_and_files_are_limited(script: str):
    outcome = bash(script, limits=Limits(seconds=2, wall_seconds=5.0, threads=64))
    assert outcome.ending in (Ending.exited, Ending.resource, Ending.timeout)
    assert len(outcome.stdout) <= Limits().output
    assert outcome.stdout.strip() in ("", str(Limits().output)) or script == "yes"
