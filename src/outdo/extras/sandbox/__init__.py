"""Run Python programs that a model wrote, without giving them anything of this machine.

`run(program, stdin)` runs a program in the strongest sandbox that works here; `open_sandbox` chooses one by name. What
a program printed is all that leaves a sandbox, and it is compared outside: no expected output is ever inside.
`open_bubblewrap().run_command` runs a command of this machine, such as a shell, in the same manner.
"""

from outdo.extras.sandbox.base import Ending, Limits, Outcome, Sandbox, SandboxUnavailableError
from outdo.extras.sandbox.choose import open_bubblewrap, open_sandbox, run

__all__ = [
    "Ending",
    "Limits",
    "Outcome",
    "Sandbox",
    "SandboxUnavailableError",
    "open_bubblewrap",
    "open_sandbox",
    "run",
]
