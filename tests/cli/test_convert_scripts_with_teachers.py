"""A script of a trainer with a teacher becomes a recipe that `outdo check` finds nothing wrong with."""

import json
from pathlib import Path

import pytest

HEAD = "from datasets import load_dataset\nfrom trl.experimental.{module} import {name}Config, {name}Trainer\n"
BATCH = "'o', per_device_train_batch_size=4, num_train_epochs=1, {options}"
SCRIPTS = {
    "distillation": ("Distillation", "beta=0, max_completion_length=16", "'model', 'teacher', args, rows"),
    "gkd": ("GKD", "lmbda=1.0, max_new_tokens=16, max_length=32", "'model', 'teacher', args=args, train_dataset=rows"),
    "sdft": ("SDFT", "num_generations=4, max_completion_length=16", "'model', args, rows"),
    "sdpo": ("SDPO", "num_generations=4, max_completion_length=16", "'model', [right], args, rows"),
}
REWARD = "def right(completions, answer, **_):\n    return [float(a == b) for a, b in zip(completions, answer)]\n"


@pytest.mark.parametrize("module", SCRIPTS)
def test_the_recipe_of_a_script_with_a_teacher_can_be_checked(module, outdo, chat_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("model", "teacher"):
        Path(folder).symlink_to(chat_model)
    rows = [{"prompt": f"{a}+1=", "answer": str(a + 1), "privileged_context": f"It is {a + 1}."} for a in range(8)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    name, options, arguments = SCRIPTS[module]
    text = HEAD.format(module=module, name=name) + REWARD
    text += "rows = load_dataset('json', data_files='rows.jsonl', split='train')\n"
    text += f"args = {name}Config({BATCH.format(options=options)})\n{name}Trainer({arguments}).train()\n"
    Path("train.py").write_text(text, encoding="utf-8")
    done = outdo("convert", "trl", "train.py", "--rows", "8")
    assert done.status == 0, done.error + done.out
    done = outdo("check", "recipe.toml", "precision=float32", "data.max_prompt_tokens=128")
    assert done.status == 0, done.out + done.error
    assert "No errors" in done.out
