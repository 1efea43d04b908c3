"""The parameters of a piece are read from its source; no code of it runs before `resolve`."""

import ast
import os
import sys

import pytest

from outdo.utils.errors import UserError
from outdo.utils.imports import resolve, signature_of

SOURCE = """
import sys
from pathlib import Path
RAN = sys.modules.setdefault("_ran_by_signature_test", sys)
def score(completion, answer, *, scale=2.0, limit=sys.maxsize, **rest): return scale
async def later(prompts, completions): ...
short = lambda completion: 1.0
class Judge:
    def __init__(self, model, *, temperature=0): ...
if RAN:
    def conditional(x=1): ...
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_reward.py").write_text(SOURCE)
    yield f"{tmp_path}/my_reward.py"
    sys.modules.pop("_ran_by_signature_test", None)
    for name in [name for name in sys.modules if name.startswith("_outdo_")]:
        del sys.modules[name]


def test_parameters_are_read_without_running_the_file(file):
    signature = signature_of(f"{file}:score")
    assert signature.parameters == ("completion", "answer", "scale", "limit")
    assert signature.required == ("completion", "answer")
    assert signature.options == ("scale", "limit")
    assert signature.defaults == {"scale": 2.0}  # `sys.maxsize` is not a literal
    assert signature.accepts_any
    assert "_ran_by_signature_test" not in sys.modules


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("later", ("prompts", "completions")), ("short", ("completion",)), ("Judge", ("model", "temperature"))],
)
def test_coroutines_lambdas_and_classes_have_signatures_too(file, name, parameters):
    signature = signature_of(f"{file}:{name}")
    assert signature.parameters == parameters
    assert signature.is_async == (name == "later")


def test_a_name_inside_an_if_is_found_and_an_imported_one_takes_anything(file):
    assert signature_of(f"{file}:conditional").defaults == {"x": 1}
    assert signature_of(f"{file}:Path").accepts_any


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("{file}:scor", 'has no "scor"; did you mean score?'),
        ("{folder}/my_rewards.py:score", "no such file (looked in {cwd}); did you mean my_reward.py?"),
        ("{folder}/pipe.py:score", "pipe.py: expected a file, and this is a folder, a pipe or a device"),
        ("score", 'expected "file.py:name"'),
        ("{folder}/broken.py:score", "is not valid Python"),
        ("outdo.algorithms.objectives.nowhere:x", "no such Python module"),
        ("near_reward:score", "no such Python module, and not a file ending in .py; did you mean near_reward.py?"),
        ("math:sqrt", '"math": this module is not written in Python; name a function in a file or a package'),
        ("near_reward.py", 'expected "near_reward.py:NAME"; it defines near, nearer'),
        ("near_reward.py:", 'expected "near_reward.py:NAME"; it defines near, nearer'),
    ],
)
def test_a_missing_name_is_reported_with_the_nearest_one(file, tmp_path, monkeypatch, spec, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def score(:")
    (tmp_path / "near_reward.py").write_text("def near(completion): ...\nx = 3\nclass nearer: ...")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError) as caught:
        signature_of(spec.format(file=file, folder=tmp_path))
    assert sentence.format(cwd=tmp_path) in str(caught.value)


def test_a_module_is_found_without_importing_its_packages(tmp_path, monkeypatch):
    package = tmp_path / "heavy_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError")
    (package / "inner.py").write_text("def piece(*, size=1): ...")
    monkeypatch.syspath_prepend(tmp_path)
    assert signature_of("heavy_package.inner:piece").defaults == {"size": 1}


def test_a_file_is_parsed_once_until_it_is_edited(file, tmp_path, monkeypatch):
    parsed = []
    monkeypatch.setattr("ast.parse", lambda *source, parse=ast.parse: parsed.append(source) or parse(*source))
    path = tmp_path / "edited.py"
    path.write_text("def piece(*, size=1): ...\ndef other(*, size=2): ...")
    assert [signature_of(f"{path}:{name}").defaults["size"] for name in ("piece", "other", "piece")] == [1, 2, 1]
    assert len(parsed) == 1
    path.write_text("def piece(*, size=3): ...\ndef other(*, size=2): ...")  # as long, and perhaps within a millisecond
    assert signature_of(f"{path}:piece").defaults["size"] == 3
    assert len(parsed) == 2


def test_resolve_imports_and_returns_the_object(file, tmp_path):
    (tmp_path / "neighbour.py").write_text("VALUE = 7")
    (tmp_path / "uses.py").write_text("from neighbour import VALUE")
    assert resolve(f"{file}:score")("a", "b") == 2.0
    assert resolve(f"{tmp_path}/uses.py:VALUE") == 7
    assert resolve("math:sqrt")(4) == 2
    sys.modules.pop("neighbour")


@pytest.mark.parametrize("line", ["1 / 0", "raise SystemExit(3)", "import no_such_module"])
def test_a_file_that_fails_on_import_is_reported_as_a_mistake(tmp_path, file, line):
    (tmp_path / "fails.py").write_text(f"{line}\ndef score(): ...")
    with pytest.raises(UserError, match=r"importing .*fails\.py raised"):
        resolve(f"{tmp_path}/fails.py:score")
