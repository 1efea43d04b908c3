"""Which commands a shell script starts: bash runs it in a sandbox, where programs only record their words.

Arrays, arithmetic, conditions, functions and strings of several lines are then bash's affair. What nobody sets gets a
mark, which the recipe shows as not complete.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from outdo.config.file import read_text
from outdo.extras.convert.near import SHELL, near_files
from outdo.extras.convert.reading import MARK, NotRunError, no_sandbox
from outdo.extras.sandbox import Ending, Limits, Outcome, open_bubblewrap
from outdo.utils.errors import UserError
from outdo.utils.text import one_line

Words = list[str]

PROGRAMS = (
    "python python3 python3.10 python3.11 python3.12 torchrun accelerate deepspeed trl ray vllm swift axolotl mpirun "
    "pip pip3 conda mamba git curl wget huggingface-cli hf wandb apt apt-get nvidia-smi rocm-smi npu-smi nvcc scontrol "
    "squeue sleep kill pkill killall module scp rsync modprobe sysctl aws gsutil jq yq nc lsof ping systemctl tee"
)
"""Programs that record their words and do nothing."""

STARTERS = "sudo srun sbatch ssh docker podman singularity apptainer uv poetry tmux screen numactl mpiexec kubectl"
"""Programs that start others: a command that is one word of theirs is run as well."""

STAND_INS = f"{PROGRAMS} {STARTERS}"

FOLDER = "/outdo-stand-ins"
WORD_END, COMMAND_END, NOT_THERE = "\x1f", "\x1e", "\x1d"
_OF_THE_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/etc/", "/proc/", "/dev/")
"""Folders in which nothing can be written."""
LIMITS = Limits(seconds=5, wall_seconds=120.0, memory=1024, threads=128)

_STAND_IN = r"""#!/bin/bash
name=${0##*/}; name=${OUTDO_NAME:-$name}
case "$name" in
  tee) cat >&201; exit 0;;
  sleep)
    [ -d /tmp/over ] && echo >>/tmp/over/sleeps && [ "$(wc -l </tmp/over/sleeps)" -gt 20 ] && kill $PPID
    mkdir /tmp/slept-1 2>/dev/null || mkdir /tmp/slept-2 2>/dev/null || mkdir /tmp/slept-3 2>/dev/null; exit 0;;
  kill|pkill|killall) exit 0;;
esac
until mkdir /tmp/outdo-lock 2>/dev/null; do :; done
{ printf '%s\037' "$name" "$@"; printf '\036'; } >&200
rmdir /tmp/outdo-lock
case "$name $1" in
  nvidia-smi*) for i in 0 1 2 3 4 5 6 7; do echo "GPU $i: NVIDIA GPU (UUID: GPU-$i)"; done; exit 0;;
  "python --version"|"python3 --version") echo "Python 3.12.0"; exit 0;;
esac
if [ -p /dev/stdout ]; then printf '⟦$(%s)⟧\n' "$name"; fi
exit 0
"""

_STARTER = r"""#!/bin/bash
OUTDO_NAME=${0##*/} /outdo-stand-ins/python "$@"
export OUTDO_DEPTH=$((OUTDO_DEPTH + 1))
[ "$OUTDO_DEPTH" -lt 4 ] || exit 0
for word in "$@"; do
  case "$word" in
    *[[:space:]]*python*|*python*[[:space:]]*|*ray\ job*|*torchrun\ *|*accelerate\ *|*deepspeed\ *) bash -c "$word";;
    *.sh|*.slurm|*.sbatch) [ -r "$word" ] && bash "$word";;
  esac
done
exit 0
"""

_FUNCTIONS = r"""
command_not_found_handle() { OUTDO_NAME=$1; shift; OUTDO_NAME=$OUTDO_NAME /outdo-stand-ins/python "$@"; }
not_there() { printf '\035%s\036' "$1" >&200; }
source() { if [ -r "$1" ]; then builtin source "$@"; else not_there "$1"; fi; }
cd() { builtin cd "$@" 2>/dev/null || { mkdir -p "${@: -1}" 2>/dev/null && builtin cd "$@"; } || true; }
grep() { command grep "$@" || [ -d /tmp/slept-3 ]; }  # what a loop waits for comes at last
realpath() { command realpath -m "$@"; }
tail() { case " $* " in *" -f "*|*" -F "*) ;; *) command tail "$@";; esac; }
export -f command_not_found_handle not_there source cd grep realpath tail
# what the script leaves in the background ends first, but for what would never end
trap 'mkdir -p /tmp/over; for _ in {1..600}; do [ -z "$(jobs -r)" ] && break; /bin/sleep 0.1; done' EXIT
"""
_NO_EXIT = "exit() { :; }\nexport -f exit\n"

_START = r"""
exec 200>&1 201>&2 1>/dev/null
mkdir -p "$HOME"
export BASH_ENV=/outdo-stand-ins/functions
exec /bin/bash "$@"
"""

_VARIABLE = re.compile(r"\$(?:\{[#!]?([A-Za-z_]\w*)([^}]?)|([A-Za-z_]\w*))")
_ASSIGNED = re.compile(
    r"(?:^|[\s;&|(`{])([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=|\b(?:for|select|read|local|declare|export|typeset)\s+"
    r"(?:-\w+\s+)*([A-Za-z_]\w*)|\bread\b[^\n;|]*?\s([A-Za-z_]\w*)\s*(?:;|$|\n|<)|\b(?:mapfile|readarray)"
    r"\b[^\n;]*?\s([A-Za-z_]\w*)"
)
_ARITHMETIC = re.compile(r"\(\((.*?)\)\)", re.DOTALL)
_BARE_NAME = re.compile(r"(?<![\w$])[A-Za-z_]\w*")
_TESTED = re.compile(r"-[znv]\s+\"?\$?\{?([A-Za-z_]\w*)")
_OF_BASH = (
    "HOME PATH PWD OLDPWD USER LOGNAME SHELL HOSTNAME RANDOM SECONDS BASH_SOURCE BASH LINENO FUNCNAME IFS UID EUID "
    "PPID OSTYPE OPTARG OPTIND BASH_VERSION PIPESTATUS BASHPID REPLY COLUMNS LINES SHLVL LANG TERM EPOCHSECONDS"
)
_ARGUMENT = re.compile(r"\$(?:\{(\d)([^}]?)|(\d))")
_IN_ARITHMETIC = re.compile(r"⟦\$(\w+)⟧[^\n]*(?:syntax error|operand expected|error token)|error token is \"⟦\$(\w+)⟧")
_IN_A_FOLDER = re.compile(rf"(?m)(?:^|(?<=[\s\"'(;&|`]))[\w./~${{}}-]*bin/(?=(?:{STAND_INS.replace(' ', '|')})[\s\"'])")
"""The folder of a program that has a stand-in."""
_MISSING_FILE = re.compile(r"(?:line \d+: |')(\S*/([\w.-]+))'?: No such file or directory")


def commands_of(path: Path, environment: Mapping[str, str]) -> tuple[list[Words], list[str]]:
    """Return the words of each command that the script starts, and the files that it wanted to source.

    Raises:
        NotRunError: bubblewrap does not work on this machine, or the script ends with an error before any command.
    """
    script = _Script(path, environment)
    reason = ""
    for words, may_exit in ((script.arguments, True), ([], True), (script.arguments, False)):
        commands, missing, outcome = script.run(words, may_exit=may_exit)
        if number := _IN_ARITHMETIC.search(outcome.stderr):
            name = number[1] or number[2]
            raise NotRunError(path, f"it calculates with ${name}, which nobody sets; give {name}=VALUE after the file")
        if commands:
            return commands, missing
        if outcome.ending is not Ending.exited:
            raise NotRunError(path, "it did not end")
        if outcome.stderr.strip():
            reason = one_line(outcome.stderr.strip().splitlines()[-1])[:200]
    if reason:
        raise NotRunError(path, reason)
    return [], []


def _is_start(words: Sequence[str]) -> bool:
    """Return whether a command may be that of a training, and not one that only prepares it."""
    return any(re.search(r"\bmain_|_main\b|train|grpo|ppo|rloo", word) for word in words)


class _Script:
    """A script of this machine with what it may read, and the variables that nobody sets."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self.path, self.folder = path.absolute(), _folder_of(path.absolute())
        texts = {self.path: read_text(path)} | near_files(self.path)
        self.files = {str(file): _tolerant(text) for file, text in texts.items()}
        script = self.files[str(self.path)]
        sourced = [text for name, text in self.files.items() if name.endswith(SHELL) and Path(name).name in script]
        self.arguments = _arguments(script)
        self.environment = {
            "PATH": f"{FOLDER}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(Path.home()),
            "USER": Path.home().name,
            "LANG": "C.UTF-8",
            **{name: MARK.format(f"${name}") for name in unset_names(script, "\n".join(sourced))},
            **environment,
        }

    def run(self, arguments: Sequence[str], *, may_exit: bool) -> tuple[list[Words], list[str], Outcome]:
        """Return the commands and the missing files. A program that is not there gets a stand-in, and the next run."""
        programs = {f"{FOLDER}/{name}": name for name in STAND_INS.split()}
        for _ in range(6):
            outcome = self._run(arguments, programs, may_exit)
            absent = {str(self.folder / path): name for path, name in _MISSING_FILE.findall(outcome.stderr)}
            absent = {path: name for path, name in absent.items() if not path.startswith(_OF_THE_SYSTEM)}
            if absent.keys() <= programs.keys():  # besides programs these are files that the script writes
                break
            programs |= absent
        return *_recorded(outcome.stdout), outcome

    def _run(self, arguments: Sequence[str], programs: Mapping[str, str], may_exit: bool) -> Outcome:
        try:
            sandbox = open_bubblewrap()
        except UserError as error:
            raise no_sandbox(self.path, error.problems[0]) from None
        return sandbox.run_command(
            ["/bin/bash", f"{FOLDER}/start", str(self.path), *arguments],
            files={
                **self.files,
                **{path: _STARTER if name in STARTERS.split() else _STAND_IN for path, name in programs.items()},
                f"{FOLDER}/functions": _FUNCTIONS + ("" if may_exit else _NO_EXIT),
                f"{FOLDER}/start": _START,
            },
            environment=self.environment,
            folder=str(self.folder),
            limits=LIMITS,
        )


def _recorded(printed: str) -> tuple[list[Words], list[str]]:
    """Return what the stand-ins recorded: commands that may start a training, and files that were not there."""
    records = [record for record in printed.split(COMMAND_END) if record]
    missing = [record.lstrip(NOT_THERE) for record in records if record.startswith(NOT_THERE)]
    commands = [record.split(WORD_END)[:-1] for record in records if not record.startswith(NOT_THERE)]
    return [words for words in commands if _is_start(words)], missing


def unset_names(text: str, sourced: str = "") -> list[str]:
    """Return the variables that a script reads, and that neither it nor a file that it sources sets, tests or defaults.

    One that the script tests, or has a default for, is left unset: that is what the script is written for.
    """
    without_comments = re.sub(r"(?m)(^|\s)#.*$", r"\1", text)
    known = {name for match in _ASSIGNED.finditer(f"{text}\n{sourced}") for name in match.groups() if name}
    known |= {match[1] for match in _TESTED.finditer(text)} | {*_OF_BASH.split()}
    read: dict[str, None] = {}
    for match in _VARIABLE.finditer(without_comments):
        name, operator = match[1] or match[3], match[2] or ""
        if operator in (":", "-", "=", "+") and not re.match(r"\$\{\w+:?\?", match.string[match.start() :]):
            known.add(name)
        read.setdefault(name)
    for expression in _ARITHMETIC.findall(without_comments):  # in which bash takes an unset name for 0
        read |= dict.fromkeys(_BARE_NAME.findall(expression))
    return [name for name in read if name not in known]


def _arguments(text: str) -> Words:
    """Return marks for the arguments that a script reads and has no default for."""
    with_default = {match[1] for match in _ARGUMENT.finditer(text) if match[2] in (":", "-")}
    numbers = {match[1] or match[3] for match in _ARGUMENT.finditer(text)} - with_default - {"0"}
    return [MARK.format(f"${number}") for number in range(1, max(map(int, numbers), default=0) + 1)]


def _tolerant(text: str) -> str:
    """Return a script that goes on after an error: a file or a device of the script's machine may not be here."""

    def without_errexit(match: re.Match[str]) -> str:
        letters = re.sub("[eunvx]", "", match[2])
        return f"{match[1]}set -{letters}" if letters else f"{match[1]}:"

    text = _IN_A_FOLDER.sub("", text)
    text = re.sub(r"(?m)^(\s*)set\s+-([a-z]+)\b", without_errexit, text)
    return re.sub(r"(?m)^(\s*)set\s+-o\s+(errexit|nounset)\b", r"\1:", text)


def _folder_of(path: Path) -> Path:
    """Return the folder in which the script runs: where the user is, if the script lies below."""
    here = Path.cwd()
    return here if path.is_relative_to(here) and here not in (Path("/"), Path.home()) else path.parent
