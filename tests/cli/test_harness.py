"""`outdo eval --lm-eval TASKS`, by a stand-in for lm-evaluation-harness, and by itself where it is installed."""

import importlib
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from command_cases import chain_model

TASK = """task: answers
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 4
metric_list:
  - metric: exact_match
"""
RESULTS = {
    "gsm8k": {
        "alias": "gsm8k",
        "exact_match,strict-match": 0.5,
        "exact_match_stderr,strict-match": 0.125,
        "exact_match,flexible-extract": 0.75,
        "exact_match_stderr,flexible-extract": "N/A",
    },
    "my_task": {"alias": "my_task", "sample_len": 36, "acc,none": 1.0, "acc_stderr,none": 0.0},
}


@pytest.fixture
def asked(monkeypatch):
    """A stand-in for lm-eval, which knows two tasks; what it was asked."""
    calls = []

    def simple_evaluate(**options):
        calls.append(options)
        return {"results": RESULTS}

    class TaskManager:
        def __init__(self, include_path):
            self.all_tasks = ["gsm8k", "hellaswag", *(["my_task"] if include_path else [])]

    modules = {name: ModuleType(name) for name in ("lm_eval", "lm_eval.models", "lm_eval.models.huggingface")}
    modules["lm_eval"].simple_evaluate = simple_evaluate  # pyright: ignore[reportAttributeAccessIssue]
    modules["lm_eval.models.huggingface"].HFLM = SimpleNamespace  # pyright: ignore[reportAttributeAccessIssue]
    modules["lm_eval.tasks"] = SimpleNamespace(TaskManager=TaskManager)  # pyright: ignore[reportArgumentType]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def test_the_scores_of_the_harness_are_shown_for_each_model(outdo, model, chat_model, asked, tmp_path):
    (tmp_path / "mine.yaml").write_text("task: my_task\nprocess_results: !function utils.score\n")
    tasks = ("--lm-eval", f"gsm8k, {tmp_path / 'mine.yaml'}", "--limit", 3, "--seed", 7)
    shown = outdo("eval", model, *tasks, "--against", chat_model)
    assert shown.status == 0, shown.error
    assert "gsm8k: exact_match (strict-match)" in shown.out
    assert "0.5 ± 0.245" in shown.out
    first, second = asked
    assert torch.get_deterministic_debug_mode() == 2
    assert (first["tasks"], first["limit"], first["torch_random_seed"]) == (["gsm8k", "my_task"], 3, 7)
    assert (first["apply_chat_template"], second["apply_chat_template"]) == (False, True)
    assert first["model"].pretrained.config.vocab_size == first["model"].tokenizer.vocab_size

    found = json.loads(outdo("eval", model, *tasks, "--json").out)[str(model)]
    assert found == {
        "gsm8k: exact_match (strict-match)": {"value": 0.5, "stderr": 0.125},
        "gsm8k: exact_match (flexible-extract)": {"value": 0.75, "stderr": None},
        "my_task: acc": {"value": 1.0, "stderr": 0.0},
    }


def test_what_has_no_effect_and_unknown_tasks_are_refused_before_a_model_is_loaded(outdo, asked, tmp_path):
    told = outdo(
        "eval", "none", "--lm-eval", "gsm8k", "--data", "x.jsonl", "--k", 4, "--temperature", 0, "--right", "a"
    )
    assert told.status == 2
    for name in ("--data", "--k", "--temperature", "--right"):
        assert f"eval: {name}: has no effect with --lm-eval" in told.error
    told = outdo("eval", "none", "--lm-eval", "gsm9k,hellaswag,x").error
    assert "no task is called gsm9k; did you mean gsm8k?" in told
    assert "no task is called x" in told
    assert "no task is called hellaswag" not in told
    (tmp_path / "empty.yaml").write_text("a: 1")
    assert "with a line `task: NAME`" in outdo("eval", "none", "--lm-eval", tmp_path / "empty.yaml").error
    assert "none.yaml: no such file" in outdo("eval", "none", "--lm-eval", "none.yaml").error
    assert "name a task" in outdo("eval", "none", "--lm-eval", ",").error
    assert asked == []


def test_without_the_package_one_sentence_says_how_to_get_it(outdo, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    told = outdo("eval", "none", "--lm-eval", "gsm8k")
    assert told.status == 2
    assert 'eval: --lm-eval needs the package lm-eval: pip install "outdo[lm-eval]"' in told.error


@pytest.mark.long  # lm-eval lists ten thousand tasks
@pytest.mark.filterwarnings("default")  # its own, and those of its libraries
def test_a_local_task_has_the_same_score_by_outdo_and_by_the_harness_itself(outdo, tmp_path):
    pytest.importorskip("lm_eval")
    rows = [{"question": "6*7=", "answer": "42"}, {"question": "6*8=", "answer": "48"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "answers.yaml").write_text(TASK.format(data=tmp_path / "rows.jsonl"))
    model = chain_model(tmp_path / "model", "42", after="=")
    done = outdo("eval", model, "--lm-eval", tmp_path / "answers.yaml", "--device", "cpu", "--json")
    assert done.status == 0, done.error
    found = json.loads(done.out.splitlines()[-1])[str(model)]
    assert found["answers: exact_match"]["value"] == 0.5

    how = ("--rewards", "exact", "--temperature", 0, "--max-tokens", 4, "--device", "cpu", "--json")
    assert json.loads(outdo("eval", model, "--data", tmp_path / "rows.jsonl", *how).out)["pass@1"] == 0.5
    harness, tasks = importlib.import_module("lm_eval"), importlib.import_module("lm_eval.tasks")
    theirs = harness.simple_evaluate(
        model="hf",
        model_args=f"pretrained={model},dtype=float32",
        device="cpu",
        tasks=["answers"],
        task_manager=tasks.TaskManager(include_path=str(tmp_path)),
    )
    assert theirs["results"]["answers"]["exact_match,none"] == 0.5
