"""The reward `code`: whether the program in a completion passes the tests of its question, in a sandbox."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outdo.extras.sandbox import Limits, open_sandbox
from outdo.extras.sandbox.code_formats import check_tests, parse_tests
from outdo.extras.sandbox.code_tests import ProgramSetting, Verdict
from outdo.rewards.context import RewardContext
from outdo.rewards.matchers import Matcher
from outdo.rewards.worker import WorkerReward
from outdo.utils.errors import UserError
from outdo.utils.thinking import without_thinking

PYTHON = frozenset({"python", "python3", "py"})

SECONDS = 3600.0
"""How long one call of the reward may take by the clock. Each run in the sandbox has limits of its own."""

_BLOCK = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


def code(
    completion: str,
    answer: Any,
    test_imports: Sequence[str] | str | None = (),
    test_setup_code: str | None = "",
    prefill: str = "",
    *,
    partial: bool = False,
    seconds: int = 4,
    memory: int = 512,
    tolerance: float = 0.0,
    sandbox: str | None = None,
    api_key: str = "",
    unsafe_local: bool = False,
) -> bool | float:
    """Return whether the program of a completion passes all tests, or with `partial` the share that it passes.

    The program is the last fenced block of Python (`last_program`). Without `partial`, testing ends with the first test
    that does not pass; with it, after the first test that takes too long.

    Args:
        completion: the answer, decoded.
        answer: the tests: pairs of input and output, or `assert` statements (`parse_tests`).
        test_imports: imports that the `assert` statements need, a list or one text; a column of MBPP.
        test_setup_code: other statements that precede them; a column of MBPP.
        prefill: what the prompt has written already of the answer, such as "```python".
        partial: return the share of passed tests, from 0 to 1.
        seconds: of computing, for each run of the program.
        memory: MiB.
        tolerance: how far a printed number may be from the expected one, absolutely or relative to it.
        sandbox: the name of the sandbox, or the URL of a service that runs programs; by default the strongest one that
            works on this machine.
        api_key: of that service.
        unsafe_local: run programs without a sandbox where none works.

    Raises:
        ValueError: `answer` holds no tests, or their imports and setup cannot be executed.
        SandboxUnavailableError: the sandbox failed. The reward is then `unavailable`, and called again.
    """
    imports = [test_imports] if isinstance(test_imports, str) else test_imports or ()
    tests = parse_tests(answer, "\n".join([*imports, test_setup_code or ""]))
    program = last_program(prefill + completion)
    if program is None:
        return 0.0 if partial else False
    setting = ProgramSetting(
        sandbox=open_sandbox(sandbox, api_key=api_key, unsafe_local=unsafe_local),
        limits=Limits(seconds=seconds, memory=memory),
        tolerance=tolerance,
    )
    passed = 0
    for verdict in tests.verdicts(program, setting):
        passed += verdict is Verdict.passed
        if verdict is Verdict.timeout or not (partial or verdict is Verdict.passed):
            break
    return passed / len(tests) if partial else passed == len(tests)


def open_code(context: RewardContext, **options: Any) -> WorkerReward:
    """Return the reward `code` with these options: a worker process starts the sandbox and observes it.

    Raises:
        UserError: there is no such sandbox, or none works on this machine.
    """
    if options.get("api_key") and not str(options.get("sandbox", "")).startswith("http"):
        raise UserError(['the reward code: api_key is that of a service: sandbox = "https://..."'])
    sandbox = open_sandbox(
        options.get("sandbox"), api_key=options.get("api_key", ""), unsafe_local=options.get("unsafe_local", False)
    )
    limits = replace(context.limits, timeout=max(context.limits.timeout, SECONDS))
    return WorkerReward(
        f"{__name__}:code",
        "code",
        options=options,
        limits=limits,
        secrets=context.secrets,
        sandbox=sandbox.description,
    )


def last_program(completion: str) -> str | None:
    """Return the program that a completion states; thinking is never part of it.

    That is the last fenced block that is marked as Python, or else the last one without a language, also where its end
    is missing. A completion without a fence is a program as a whole. `None` if there is no program.
    """
    text = without_thinking(completion).replace("\r\n", "\n")
    blocks = [(language.lower(), body) for _, language, body in _BLOCK.findall(text)]
    marked = [body for language, body in blocks if language in PYTHON]
    plain = [body for language, body in blocks if not language]
    programs = marked or plain or ([] if blocks else [text])
    return textwrap.dedent(programs[-1]) if programs and programs[-1].strip() else None


MATCHER = Matcher(read=last_program, check_reference=check_tests, reference_is_answer=False)
