"""Data sets of the Hub: the commit is written down, and a run that goes on reads it again."""

import json

from command_cases import SMALL, outdo_process


def content(*numbers):
    rows = [{"question": f"1+{n}=", "answer": str(n + 1)} for n in numbers]
    return {"README.md": b"# sums\n", "train.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()}


def test_a_run_writes_down_the_commit_of_its_data_and_goes_on_with_it(hub, model, tmp_path):
    run = tmp_path / "run"
    first = hub.add_commit("datasets/me/sums", content(*range(12)))
    settings = (f"model={model}", "data.path=me/sums", "data.eval_path=me/sums:train[:3]", f"run={run}", *SMALL)
    done = outdo_process("train", *settings, "steps=1")
    assert done.status == 0, done.error
    assert f"data.path: 12 questions; columns: question -> prompt, answer -> answer; commit {first}" in done.out
    assert json.loads((run / "environment.json").read_text())["revisions"] == {"datasets/me/sums": first}

    second = hub.add_commit("datasets/me/sums", content(*range(50, 70)))
    resumed = outdo_process("resume", run, "steps=2")
    assert resumed.status == 0, resumed.error
    revisions = [json.loads(line)["revisions"] for line in (run / "history.jsonl").read_text().splitlines()]
    assert revisions == [{"datasets/me/sums": first}] * 2
    assert first != second
    prompts = {json.loads(line)["prompt"] for file in run.glob("held_out/*") for line in file.read_text().splitlines()}
    assert prompts == {"1+0=", "1+1=", "1+2="}
