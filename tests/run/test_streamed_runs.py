"""A run on questions that stay on disk is the run on the same questions in memory, also if it is killed."""

from kill_cases import assert_resumed_after, killed_and_resumed
from run_cases import metrics, outdo_, timeless, weights

STREAMED = 'data.path={path = "train.jsonl", streaming = true}'


def test_a_streamed_run_that_is_killed_and_resumed_equals_one_in_memory(home, straight):
    said = outdo_(home, "check", "recipe.toml", STREAMED)
    assert "data.path: 12 questions, streamed from disk" in said
    kills = killed_and_resumed(home, home / "killed-streamed", 3, STREAMED, "checkpoint.every=1")
    assert_resumed_after(kills, 1)
    run = home / "killed-streamed"
    assert weights(run) == weights(straight)
    assert timeless(run) == timeless(straight)
    assert len(metrics(run)) == 30


def test_a_resume_refuses_a_streamed_file_that_has_changed(own_home):
    outdo_(own_home, "train", "recipe.toml", "run=./run", STREAMED, "steps=1", "eval.every=0")
    with (own_home / "train.jsonl").open("a") as file:
        file.write('{"prompt": "9=", "answer": "9"}\n')
    assert "data.path: the file has changed" in outdo_(own_home, "resume", "./run", "steps=2", status=2)
