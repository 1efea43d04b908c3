"""A run on questions that stay on disk is the run on the same questions in memory, also if it is resumed."""

from run_cases import outdo_, weights

STREAMED = 'data.path={path = "train.jsonl", streaming = true}'


def test_a_streamed_run_that_is_resumed_equals_one_in_memory(home, six_steps):
    outdo_(home, "train", "recipe.toml", "run=./streamed", STREAMED, "steps=2", "eval.every=0")
    outdo_(home, "resume", "streamed", "steps=6")
    assert "data.path: 12 questions, streamed from disk" in outdo_(home, "check", "recipe.toml", STREAMED)
    assert weights(home / "streamed") == weights(six_steps)


def test_a_resume_refuses_a_streamed_file_that_has_changed(own_home):
    outdo_(own_home, "train", "recipe.toml", "run=./run", STREAMED, "steps=1", "eval.every=0")
    with (own_home / "train.jsonl").open("a") as file:
        file.write('{"prompt": "9=", "answer": "9"}\n')
    assert "data.path: the file has changed" in outdo_(own_home, "resume", "./run", "steps=2", status=2)
