"""A script that calls a trainer of TRL is run in a sandbox up to the trainer, or refused."""

import ast
import contextlib
import json
import os
import random
import socket
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from conversion_table import check_rows, row
from trl_scripts import SCRIPTS as OF_GRPO
from trl_teacher_scripts import SCRIPTS as WITH_TEACHERS

from outdo.extras.convert import recorded
from outdo.extras.convert.reading import Configuration, NotRunError, with_code
from outdo.extras.convert.recorded import recorded_script
from outdo.extras.convert.recorder.trainer import OF_THE_MODEL
from outdo.extras.convert.trl import convert_trl
from outdo.rewards import RewardInput, load_reward
from outdo.utils.errors import UserError

SCRIPTS = {**OF_GRPO, **WITH_TEACHERS}
OF_TRL = {f"{trainer}{what}" for trainer in ("GRPO", "Distillation", "GKD", "SDPO") for what in ("Config", "Trainer")}
OF_TRL |= {"LoraConfig", "get_peft_model", "from_pretrained", "BitsAndBytesConfig"}
"""Calls of which each argument is counted."""

PLACES = {
    "teacher_model": "teacher_model_name_or_path",
    "model": "model_name_or_path",
    "model_name": "model_name_or_path",
    "tokenize": "",
    "args": "",
}
PLACES |= {"processing_class": "", "is_trainable": "", "quantization_config": "", **OF_THE_MODEL}
"""The setting that says the same as an argument, or "" where the argument holds others."""


def written_script(name, folder):
    script = SCRIPTS[name]
    for file, text in script.files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    path = folder / "train.py"
    path.write_text(script.text, encoding="utf-8")
    return script, path


def at(value, folder):
    """Return an expected value with the folder of the script in it."""
    return json.loads(json.dumps(value).replace("FOLDER", str(folder)))


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    """Return a script by its name, with its folder and what running it says; each runs once."""

    @cache
    def run(name):
        folder = tmp_path_factory.mktemp("script")
        script, path = written_script(name, folder)
        return SimpleNamespace(script=script, path=path, folder=folder, said=recorded_script(path, script.arguments))

    return run


@pytest.mark.parametrize("name", SCRIPTS)
def test_running_a_script_tells_all_that_it_asks_for(name, reading):
    case = reading(name)
    assert case.said.written == at(dict(case.script.written), case.folder)
    assert sorted(case.said.unread) == sorted(case.script.unread)
    assert len(case.said.missing) == len(case.script.missing)
    for part in case.script.missing:
        assert any(part in sentence for sentence in case.said.missing), case.said.missing
    for part in case.script.remarks:
        assert any(part in remark for remark in case.said.remarks), case.said.remarks


def arguments_in(text):
    """Yield the names of the arguments of the calls of TRL and its relatives in a script."""
    tree = ast.parse("\n".join("" if line[:1] in "!%" else line for line in text.splitlines()))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in OF_TRL:
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def accounted(reading: Configuration, argument: str) -> bool:
    name = PLACES.get(argument, argument)
    options = (
        {*reading.written.get("peft_config", {})} if isinstance(reading.written.get("peft_config"), dict) else set()
    )
    said = " ".join([*reading.remarks, *reading.missing, *reading.unread.values()])
    return not name or name in {*reading.written, *reading.unread} | options or name in said or argument in said


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in ("registry", "dataclasses")])
def test_each_argument_of_the_calls_is_written_or_named(name, reading):
    case = reading(name)
    lost = [each for each in arguments_in(case.script.text) if not accounted(case.said, each)]
    assert not [each for each in lost if each not in ("eval_dataset", "peft_config")]


def test_the_table_of_the_decision_has_each_script(reading):
    check_rows(row(f"trl: {name}", convert_trl(reading(name).said)) for name in SCRIPTS)


# -------------------------------------------------------------------------------------------------------------- rewards


def rewards_of(case, folder, name):
    file = folder / "recipe_rewards.py"
    file.write_text(case.said.source, encoding="utf-8")
    return load_reward(with_code(f"CODE:{name}", str(file)))


def value_of(reward, completion, **columns):
    try:
        given = RewardInput(prompt="1+1=", completion=completion, answer=columns["answer"], columns=columns)
        return [output.value for output in reward([given])]
    finally:
        reward.close()


def test_a_reward_gets_the_columns_and_messages_that_the_script_makes(reading, tmp_path):
    reward = rewards_of(reading("unsloth"), tmp_path, "correct")
    assert value_of(reward, "so <answer>2</answer>", question="1+1=", answer="It is so.\n#### 2") == [2.0]


def test_a_reward_gets_text_where_the_script_renders_its_prompts(reading, tmp_path):
    reward = rewards_of(reading("rendered prompts"), tmp_path, "score")
    assert value_of(reward, "it is 2", question="1+1=", answer="2") == [1.0]


def test_a_reward_gets_the_columns_by_the_names_of_the_script(reading, tmp_path):
    reward = rewards_of(reading("text prompts"), tmp_path, "score")
    assert value_of(reward, "2", problem="1+1=", answer="2") == [1.0]


def test_a_reward_gets_a_column_that_the_script_renames(reading, tmp_path):
    reward = rewards_of(reading("renamed rows"), tmp_path, "score")
    assert value_of(reward, "1+1=", problem="1+1=", answer="2") == [1.0]


def test_the_file_of_a_reward_has_all_that_it_uses_with_the_values_of_the_run(reading, tmp_path):
    case = reading("reward with surroundings")
    for line in ('os.environ["MY_FLAG"] = "1"', "WORDS = ['so', 'thus']", "WEIGHTS = {'right': 2.0}", "LIMIT = 100"):
        assert line in case.said.source.splitlines()
    assert "GRPOTrainer" not in case.said.source
    assert value_of(rewards_of(case, tmp_path, "score"), "#### 2", answer="2") == [4.0]


ROWS_OF_TRAINER = """
from rows_of_mine import make_rows
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
part = load_dataset("org/rows", split="train").train_test_split(test_size=50)
other = load_dataset("org/others", split="train").train_test_split(test_size=20)
GRPOTrainer("org/model", "org/reward", GRPOConfig(), {rows})
"""


@pytest.mark.parametrize(
    ("rows", "written", "missing"),
    [
        ("part['train']", {"data.eval_rows": 50}, []),
        ("part['train'], part['test'].select(range(9))", {"data.eval_rows": 50, "eval.rows": 9}, []),
        ("part['train'], other['test']", {"eval_dataset": "org/others:train"}, ["train_dataset", "eval_dataset"]),
        ("part['train'], load_dataset('org/others')", {"eval_dataset": "org/others:test"}, ["train_dataset"]),
        ("part['test']", {}, ["train_dataset"]),
        ("load_dataset('org/rows'), other['test']", {"eval_dataset": "org/others:train"}, ["eval_dataset"]),
        (
            "load_dataset('org/rows'), {'a': load_dataset('a/a').select(range(9)), 'b': load_dataset('b/b').take(9)}",
            {"eval_dataset": {"a": "a/a:test", "b": "b/b:test"}, "eval.rows": 9},
            [],
        ),
        (
            "load_dataset('org/rows'), {'a': load_dataset('a/a').select(range(9)), 'b': load_dataset('b/b')}",
            {"eval_dataset": {"a": "a/a:test", "b": "b/b:test"}},
            ["eval.rows"],
        ),
        (
            "load_dataset('org/rows'), {'a': part['test'], 'b': load_dataset('b/b')}",
            {"eval_dataset": {"a": "org/rows:train", "b": "b/b:test"}},
            ["eval_dataset a"],
        ),
        (
            "load_dataset('org/rows'), load_dataset('org/rows').map(lambda row: {'prompt': row['problem']})",
            {"eval_dataset": "org/rows:test"},
            ["eval_dataset"],
        ),
    ],
)
def test_what_a_script_does_to_held_out_rows_is_in_the_recipe_or_missing(rows, written, missing, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(ROWS_OF_TRAINER.format(rows=rows), encoding="utf-8")
    said = recorded_script(path, ())
    of_rows = {name: said.written.get(name) for name in ("eval_dataset", "data.eval_rows", "eval.rows", "data.limit")}
    assert {name: value for name, value in of_rows.items() if value is not None} == written
    assert [sentence.partition(":")[0] for sentence in said.missing] == missing


def test_a_held_out_set_that_nobody_can_read_leaves_all_of_them_open(tmp_path):
    path = tmp_path / "train.py"
    rows = "load_dataset('org/rows'), {'a': load_dataset('a/a'), 'b': make_rows()}"
    path.write_text(ROWS_OF_TRAINER.format(rows=rows), encoding="utf-8")
    said = recorded_script(path, ())
    assert "eval_dataset" in said.unread
    assert "eval_dataset" not in said.written


def test_a_change_of_held_out_rows_with_a_name_is_a_remark(tmp_path):
    path = tmp_path / "train.py"
    rows = "load_dataset('org/rows'), {'a': load_dataset('a/a').filter(len)}"
    path.write_text(ROWS_OF_TRAINER.format(rows=rows), encoding="utf-8")
    assert any("eval_dataset" in remark and "(filter)" in remark for remark in recorded_script(path, ()).remarks)


GLOBAL = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
TOKENIZER = None
def score(completions, **kwargs):
    return [len(TOKENIZER(c)) for c in completions]
def main():
    global TOKENIZER
    TOKENIZER = object()
    GRPOTrainer("m", score, GRPOConfig(), load_dataset("a/b"))
main()
"""


def test_a_name_that_the_file_of_a_reward_lacks_is_told_at_once(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(GLOBAL, encoding="utf-8")
    assert recorded_script(path).missing == ["TOKENIZER: read by score, and set by the script while it runs"]


# -------------------------------------------------------------------------------------------------------------- sandbox

HOSTILE = """
import os, socket, subprocess, urllib.request
reached = []
def attempt(name, function, *arguments):
    try:
        reached.append(f"{name}: {function(*arguments)}")
    except Exception:
        pass
from io import FileIO
attempt("a file", lambda: FileIO(%(secret)r).read())
attempt("a new file", lambda: FileIO(%(new)r, "w").write(b"x"))
attempt("a folder", os.listdir, %(folder)r)
attempt("the network", lambda: socket.create_connection(("127.0.0.1", %(port)d), timeout=5))
attempt("a process", lambda: os.posix_spawn("/bin/true", ["true"], {}))
attempt("a variable", lambda: os.environ.copy()["OUTDO_TEST_SECRET"])
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
open("left.txt", "w").write("x")
os.makedirs("runs/first")
GRPOTrainer("m", "org/reward", GRPOConfig(run_name=str(reached)), load_dataset("a/b"))
"""


def test_a_script_reaches_nothing_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTDO_TEST_SECRET", "a secret")
    monkeypatch.chdir(tmp_path)
    secret, new, path = tmp_path / "secret", tmp_path / "new", tmp_path / "train.py"
    secret.write_text("a secret", encoding="utf-8")
    secret.chmod(0o644)
    tmp_path.chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as server:
        names = {"secret": str(secret), "new": str(new), "folder": str(tmp_path), "port": server.getsockname()[1]}
        path.write_text(HOSTILE % names, encoding="utf-8")
        reading = recorded_script(path)
    assert reading.written["run_name"] == "[]"
    assert sorted(os.listdir(tmp_path)) == ["secret", "train.py"]


FORGED = """
import json, os
os.write(1, json.dumps({"error": "", "asked": {}} | %s).encode() + b"\\n")
os._exit(0)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("while True: pass", "it took too long"),
        ("x = []\nwhile True: x.append(' ' * 10**9)", "it used too much memory|MemoryError"),
        ("import trl\n1 / 0", "line 2: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "it ends with exit status 3"),
        ("import os; os._exit(0)", "it ended without a record of its trainer"),
        ("import os; os.write(1, b'{}\\n'); os._exit(0)", "it ended without a record of its trainer"),
        ("import os; os.write(1, b'[3]\\n'); os._exit(0)", "it ended without a record of its trainer"),
        (FORGED % {"reading": {"unread": {"beta": 3}}}, "it ended without a record of its trainer"),
        (FORGED % {"asked": {"x": [1, []]}}, "it ended without a record of its trainer"),
        (FORGED % {"reading": 4}, "it ended without a record of its trainer"),
        ("print('{}')", "it makes no trainer of TRL that outdo knows"),
        ("open('rows.json')", "FileNotFoundError: rows.json: no such file"),
    ],
)
def test_a_script_that_cannot_be_run_is_named_with_its_reason(text, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "LIMITS", replace(recorded.LIMITS, seconds=1, memory=300))
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(NotRunError, match=reason):
        recorded_script(path)


def test_without_a_sandbox_no_script_is_run(tmp_path, monkeypatch):
    def none():
        raise UserError(["no sandbox for programs of the model works on this machine. Install one"])

    monkeypatch.setattr(recorded, "open_sandbox", none)
    _, path = written_script("peft by place", tmp_path)
    with pytest.raises(NotRunError, match="works on this machine; install bubblewrap, which needs Linux"):
        recorded_script(path)


# --------------------------------------------------------------------------------------------------------- broken files


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("def f(:", "not Python"), ("print(1)", "it makes no trainer of TRL that outdo knows"), ("\0", "not Python")],
)
def test_a_file_that_is_no_such_script_is_refused_in_a_sentence(text, sentence, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises((UserError, NotRunError), match=sentence):
        recorded_script(path)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_damaged_script_is_run_or_refused(name, tmp_path, monkeypatch):
    choose = random.Random(name)
    _, path = written_script(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    path = path.relative_to(tmp_path)
    text = path.read_text(encoding="utf-8")
    for number in range(6):
        lines = text.splitlines()
        for _ in range(choose.randint(1, 4)):
            lines.pop(choose.randrange(len(lines)))
        damaged = "\n".join(lines) if number % 3 else text[: choose.randrange(len(text))]
        path.write_text(damaged, encoding="utf-8")
        with contextlib.suppress(UserError, NotRunError):
            recorded_script(path)


def test_the_recorder_runs_in_the_oldest_python_that_may_be_there():
    """The sandbox may use the system's own interpreter."""
    files = {name: recorded.FOLDER / f"{name.replace('.', '/')}.py" for name in recorded.MODULES}
    for file in files.values():
        ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 10))
    inner = {path.stem for path in (recorded.FOLDER / "recorder").glob("*.py")} - {"__init__"}
    assert inner == {name.partition(".")[2] for name in recorded.MODULES} - {""}
