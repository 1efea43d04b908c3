"""One text under two checkpoints, and what `outdo inspect` writes, serves and refuses."""

import base64
import gzip
import io
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
import torch
from encoded_pages import unpack
from rich.console import Console
from run_folders import write_small_run
from transformers import AutoModelForCausalLM

from outdo.extras.page import command as inspect
from outdo.extras.page.command import InspectArguments
from outdo.extras.page.compare import logprobs, rescore
from outdo.extras.page.encode import beginning
from outdo.extras.page.select import select_rows
from outdo.extras.record import parquet
from outdo.extras.record.table import FORKS
from outdo.models.policy import Policy
from outdo.run.checkpoints import checkpoint
from outdo.run.display import Display
from outdo.run.folder.run_folder import RunFolder
from outdo.testing import tiny_model
from outdo.utils.errors import UserError


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with checkpoints of two different models after steps 2 and 6."""
    folder = write_small_run(tmp_path_factory.mktemp("runs") / "compared")
    for step in (2, 6):
        policy = Policy(*tiny_model(seed=step, vocab=300))
        checkpoint.save(folder / "checkpoints", step, policy.save, {})
    return folder


def run_inspect(runs: list[Path], *, display: Display, **options: Any) -> None:
    inspect.run_inspect(runs, InspectArguments(**options), display)


def display() -> Display:
    return Display(Console(file=io.StringIO(), width=200), live=False)


def said(shown: Display) -> str:
    assert isinstance(shown.console.file, io.StringIO)
    return shown.console.file.getvalue()


def data(path: Path) -> dict:
    (text,) = re.findall(r'id="outdo-data">(.*?)</script>', path.read_text(), re.DOTALL)
    return json.loads(text)


# ----------------------------------------------------------------------------------------------------------- compare


def test_the_same_text_under_two_checkpoints_equals_plain_transformers(compared: Path):
    table = parquet.read(compared, 4).slice(3, 12)  # parts of two groups
    folders = {name: compared / "checkpoints" / f"step_{step:06d}" for name, step in (("a", 2), ("b", 6))}
    found = rescore(table, **folders, device="cpu")
    for name, folder in folders.items():
        model = AutoModelForCausalLM.from_pretrained(folder)
        for row in found.to_pylist():
            prompt, ids = row["prompt_token_ids"], row["token_ids"]
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *ids]])).logits[0].float() / row["temperature"]
            plain = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, torch.tensor(ids)[:, None]).squeeze(1)
            numpy.testing.assert_allclose(row[f"{name}_logprobs"], plain.numpy(), atol=2e-5)
    assert found["a_logprobs"] != found["b_logprobs"]


def test_a_long_completion_is_scored_before_its_middle_is_left_out(compared: Path):
    a, b = (compared / "checkpoints" / f"step_{step:06d}" for step in (2, 6))
    shown = select_rows(compared, 4, tokens=80, rescore=partial(rescore, a=a, b=b, device="cpu")).table.to_pylist()
    assert max(row["omitted"] for row in shown) > 0
    table = parquet.read(compared, 4)
    whole = {(row["group"], row["rollout"]): row for row in rescore(table, a=a, b=b, device="cpu").to_pylist()}
    for row in shown:
        kept = len(row["token_ids"])
        places = [n if n < beginning(kept) else n + row["omitted"] for n in range(kept)]
        for name in ("token_ids", "a_logprobs", "b_logprobs"):
            expected = whole[row["group"], row["rollout"]][name]
            assert row[name] == pytest.approx([expected[place] for place in places], abs=2e-5), name


def test_each_conversation_of_an_episode_is_scored_after_its_own_tokens(compared: Path):
    model = compared / "checkpoints/step_000002"
    prompt, ids = [4, 5, 6], list(range(20, 50))
    forks = [{"token": 10, "after": -1}, {"token": 20, "after": 4}, {"token": 25, "after": None}]
    table = pyarrow.table(
        {
            "group": [0, 0],
            "prompt_token_ids": [prompt] * 2,
            "token_ids": [ids] * 2,
            "temperature": [1.0] * 2,
            "forks": pyarrow.array([forks, None], FORKS),
        }
    )
    forked, plain = logprobs(table, model, device="cpu")
    conversations = [[*prompt, *ids[:10]], [*prompt, *ids[10:20]], [*prompt, *ids[:5], *ids[20:25]], ids[25:]]
    expected = [under(model, read) for read in conversations]
    own = [expected[0][2:], expected[1][2:], expected[2][7:], [numpy.nan], expected[3]]
    numpy.testing.assert_allclose(plain, under(model, [*prompt, *ids])[2:], atol=2e-5)
    numpy.testing.assert_allclose(forked, numpy.concatenate(own), atol=2e-5)


def under(model: Path, ids: list[int]) -> numpy.ndarray:
    """The log-probabilities of a text but for its first token, by plain transformers."""
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(model)(torch.tensor([ids])).logits[0].float()
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1).numpy()


def test_the_page_has_both_columns_of_the_step(compared: Path, tmp_path: Path):
    run_inspect([compared], display=display(), out=tmp_path / "page.html", compare=("2", "step_6"))
    (run,) = data(tmp_path / "page.html")["runs"]
    assert run["compared"] == {"step": 6, "a": "step_000002", "b": "step_000006"}
    for entry in run["chosen"]:
        header, columns = unpack(gzip.decompress(base64.b64decode(entry["blob"])))
        assert ({"a", "b"} <= set(header["columns"])) == (entry["step"] == 6)
        if entry["step"] == 6:
            assert not numpy.isnan(columns["a"]).any()


# ------------------------------------------------------------------------------------------------------- the command


def test_the_page_of_a_finished_run_is_in_its_folder(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    shown = display()
    run_inspect([folder], display=shown)
    assert data(folder / "report.html")["live"] is None
    assert str(folder / "report.html") in said(shown)


def test_a_live_run_is_served_unless_a_file_is_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_small_run(tmp_path / "run")
    served = []
    monkeypatch.setattr("outdo.extras.page.server.serve", lambda runs, **_: served.append(list(runs)))
    with RunFolder(folder):
        run_inspect([folder], display=display(), serve=False)
        run_inspect([folder], display=display(), out=tmp_path / "page.html")
        assert not served
        run_inspect([folder], display=display())
    assert served == [[folder]]
    run_inspect([folder], display=display())
    assert len(served) == 1
    run_inspect([folder], display=display(), serve=True)
    assert len(served) == 2


def test_without_the_extra_the_error_names_the_package(small_run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "outdo.extras.page.server", raising=False)

    with pytest.raises(UserError, match=re.escape("pip install outdo[inspect]")):
        run_inspect([small_run], display=display(), serve=True)


def test_all_mistakes_are_reported_at_once(compared: Path, tmp_path: Path):
    with pytest.raises(UserError) as caught:
        run_inspect([compared], display=display(), steps=[3, 77], compare=("2", "7"), serve=True)
    told = str(caught.value)
    assert len(caught.value.problems) == 4
    assert "step 77 is not recorded; recorded steps: 1, 2, 3, 4, 5, 6" in told
    assert "--compare 7: neither an evaluation nor a checkpoint; evaluations: none; checkpoints: step_2, step_6" in told
    for option in ("give --step once", "leave out --serve"):
        assert option in told


def test_a_folder_without_a_run_is_an_error(small_run: Path, tmp_path: Path):
    with pytest.raises(UserError, match="no such folder; did you mean small"):
        run_inspect([small_run.parent / "smal"], display=display())
    with pytest.raises(UserError, match="no run is there"):
        run_inspect([tmp_path], display=display())
    with pytest.raises(UserError, match="given twice"):
        run_inspect([small_run, small_run], display=display())


def test_an_unwritable_page_is_reported_before_anything_is_read(small_run: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        run_inspect([small_run], display=display(), out=tmp_path / "nowhere/page.html")
    with pytest.raises(UserError, match="this is a folder"):
        run_inspect([small_run], display=display(), out=tmp_path)


def test_inspect_imports_neither_torch_nor_a_server(small_run: Path, tmp_path: Path):
    program = (
        "import sys; from pathlib import Path; from outdo.run.display import Display\n"
        "from outdo.extras.page.command import InspectArguments, run_inspect\n"
        "run_inspect([Path(sys.argv[1])], InspectArguments(out=Path(sys.argv[2])), Display())\n"
        "print([name for name in ('torch', 'transformers', 'starlette', 'uvicorn') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, str(small_run), str(tmp_path / "page.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
