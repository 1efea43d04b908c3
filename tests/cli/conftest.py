"""What the command tests share: GSM8K whole, one tiny model with a tokenizer of its own, and one run."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from command_cases import SMALL, Command, Done, chain_model, outdo_process
from stand_in_hub import Hub, stand_in_hub

from outdo.cli.main import main
from outdo.extras.quickstart import settings
from outdo.extras.quickstart.command import TASKS
from outdo.models.optimiser import OptimiserSettings
from outdo.testing import byte_bpe_tokenizer, tiny_model

EXCERPT = Path(__file__).parents[2] / "examples" / "gsm8k_100.jsonl"
VOCABULARY = 400


@pytest.fixture(scope="session")
def gsm8k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.jsonl and test.jsonl: GSM8K itself where `OUTDO_GSM8K` says, else the excerpt, halved."""
    if "OUTDO_GSM8K" in os.environ:
        return Path(os.environ["OUTDO_GSM8K"])
    folder, lines = tmp_path_factory.mktemp("gsm8k"), EXCERPT.read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(lines[:80]), encoding="utf-8")
    (folder / "test.jsonl").write_text("".join(lines[80:]), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def texts(gsm8k: Path) -> list[str]:
    """Some questions and answers, for a tokenizer to learn from."""
    lines = (gsm8k / "train.jsonl").read_text(encoding="utf-8").splitlines()[:500]
    return [text for line in lines for text in json.loads(line).values()]


@pytest.fixture(scope="session")
def model(texts: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose byte-level BPE tokenizer was trained on the spot."""
    return _model(texts, tmp_path_factory.mktemp("models") / "plain", chat=False)


@pytest.fixture(scope="session")
def chat_model(texts: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a chat template."""
    return _model(texts, tmp_path_factory.mktemp("models") / "chat", chat=True)


def _model(texts: Sequence[str], folder: Path, *, chat: bool) -> Path:
    network, _ = tiny_model(vocab=VOCABULARY)
    network.save_pretrained(folder)
    byte_bpe_tokenizer(texts, VOCABULARY, chat=chat).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers 7, or at temperature 1 now and then something else."""
    return chain_model(tmp_path_factory.mktemp("models") / "seven", "7", after="=")


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty questions that a tiny model's context has room for."""
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    path.write_text("".join(json.dumps({"question": f"1+{n}=", "answer": str(1 + n)}) + "\n" for n in range(20)))
    return path


@pytest.fixture(scope="session")
def run(model: Path, sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of two steps, with held-out questions; made by the real command."""
    folder = tmp_path_factory.mktemp("runs") / "shared"
    done = outdo_process("train", f"model={model}", f"data.path={sums}", "data.eval_rows=4", f"run={folder}", *SMALL)
    assert done.status == 0, done.error
    return folder


@pytest.fixture
def outdo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """A command in this process, where torch is loaded already: its exit status and what it printed."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["outdo", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "300")
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        return Done(int(left.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture
def short_quickstart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of the quickstart in one process, of so few steps, questions and tokens that nothing is learnt."""
    monkeypatch.setattr(settings, "QUESTIONS", 64)
    monkeypatch.setattr(settings, "WARM_START_PAIRS", 8)
    monkeypatch.setattr(settings, "THREADS", 1)
    monkeypatch.setattr(settings, "WARM_START_STEPS", 2)
    monkeypatch.setattr(settings, "WARM_START", OptimiserSettings(lr=1e-3))
    sums = TASKS["sums"]
    monkeypatch.setitem(TASKS, "sums", replace(sums, replicas=1, steps=2, prompts=2, rows=8, max_tokens=8))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A stand-in for the Hub, for commands in processes of their own."""
    with stand_in_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 30)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        yield hub


@pytest.fixture(scope="session")
def stand_in(texts: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of Qwen2's architecture, with as long a context."""
    folder = tmp_path_factory.mktemp("models") / "qwen2"
    network, _ = tiny_model(vocab=416, arch="qwen2")
    network.config.max_position_embeddings = 32_768
    network.save_pretrained(folder)
    byte_bpe_tokenizer(texts, 400, chat=True).save_pretrained(folder)
    return folder
