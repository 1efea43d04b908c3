"""Questions that stay on disk are those of questions in memory: the same ids, prompts, order and refusals."""

import json
import tracemalloc
from dataclasses import replace
from itertools import islice

import pytest
import torch

from outdo.config.file import RecipeError, load
from outdo.data.batches import in_batches
from outdo.data.prompts import Prompts, tokenise
from outdo.data.sequences import Joined
from outdo.data.splits import load_questions
from outdo.data.streamed_prompts import StreamedPrompts, stream_prompts
from outdo.data.streaming import StreamedQuestions
from outdo.run.check.prompt_warnings import question_warnings
from outdo.testing import byte_bpe_tokenizer
from outdo.utils.errors import UserError

TOKENIZER = byte_bpe_tokenizer([], 300)
ROWS = [{"question": f"{n}+{n}={'?' * (n % 7)}", "answer": str(2 * n), "more": {"n": [n]}} for n in range(50)]


def recipe(*sources, **more):
    listed = ", ".join(f"{{{each}}}" for each in sources)
    return load(None, ["model=m", f"data.path=[{listed}]", *(f"data.{key}={value}" for key, value in more.items())])


def both(*sources, **more):
    """The questions in memory, and the same questions streamed."""
    streamed = [f"{each}, streaming = true" for each in sources]
    return load_questions(recipe(*sources, **more)), load_questions(recipe(*streamed, **more))


def prompts_of(questions, longest=8):
    train = questions.train
    parts = train.parts if isinstance(train, Joined) else [train]
    tokenised = [
        (stream_prompts if isinstance(part, StreamedQuestions) else tokenise)(part, TOKENIZER, max_tokens=longest)
        for part in parts
    ]
    prompts = Joined(tokenised) if len(tokenised) > 1 else tokenised[0]
    return in_batches(prompts, questions, per_step=7, seed=3, shuffle=True)


def assert_equal(memory, streamed):
    assert not isinstance(streamed.train, tuple)
    assert list(streamed.train) == [streamed.train[place] for place in range(len(streamed.train))] == list(memory.train)
    assert streamed.fingerprints == memory.fingerprints
    batches = [list(islice(prompts_of(each), 20)) for each in (memory, streamed)]
    assert batches[0] == batches[1]
    assert list(question_warnings(streamed)) == list(question_warnings(memory))


@pytest.mark.parametrize("limit", [None, 20])
def test_streamed_questions_are_those_in_memory_in_the_same_order(tmp_path, limit):
    rows = [{**row, "id": f"q{n}"} if n % 3 else row for n, row in enumerate(ROWS)]
    lines = "\ufeff\n" + "\n \n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\r\n\n"
    (tmp_path / "rows.jsonl").write_text(lines + '{"question": "1+1=", "answer": "2"}')
    memory, streamed = both(f'path = "{tmp_path}/rows.jsonl"', **({"limit": limit} if limit else {}))
    assert_equal(memory, streamed)
    assert len(streamed.train) == limit or len(ROWS) + 1
    note = f"data.path: {len(memory.train)} questions, streamed from disk; columns: question -> prompt"
    assert any(each.startswith(note) for each in streamed.notes)


def test_streamed_questions_bring_what_the_model_reads_beside_tokens(written):
    def inputs(row):
        return {"mood": torch.tensor(row["more"]["n"])}

    memory, streamed = both(f'path = "{written(ROWS)}"')
    prompts = [
        make(questions.train, TOKENIZER, inputs=inputs)
        for make, questions in ((tokenise, memory), (stream_prompts, streamed))
    ]
    assert [[int(prompt.inputs["mood"]) for prompt in each] for each in prompts] == [[*range(len(ROWS))]] * 2
    found = next(iter(Prompts(prompts[1], per_step=7, seed=3)))
    assert [int(prompt.inputs["mood"]) for prompt in found] == [int(prompt.id) - 1 for prompt in found]


def test_parquet_files_and_data_sets_are_streamed_from_what_datasets_maps_into_memory(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    table = datasets.Dataset.from_list(ROWS)
    table.to_parquet(tmp_path / "rows.parquet")
    memory, streamed = both(f'path = "{tmp_path}/rows.parquet"')
    same_file = replace(streamed, fingerprints=memory.fingerprints)
    assert_equal(memory, same_file)
    table.save_to_disk(tmp_path / "saved")
    assert_equal(*both(f'path = "{tmp_path}/saved"'))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"broken\.parquet: not a whole Parquet file"):
        load_questions(recipe(f'path = "{tmp_path}/broken.parquet", streaming = true'))


@pytest.mark.parametrize("weights", [(None, None), (3, 1)])
def test_streamed_files_are_mixed_with_files_in_memory(written, weights):
    paths = [written(ROWS[:30], "a.jsonl"), written(ROWS[20:], "b.jsonl")]
    sources = [f'path = "{path}"' + (f", weight = {w}" if w else "") for path, w in zip(paths, weights, strict=True)]
    memory = load_questions(recipe(*sources))
    assert_equal(memory, load_questions(recipe(sources[0], f"{sources[1]}, streaming = true")))
    assert_equal(memory, load_questions(recipe(f"{sources[0]}, streaming = true", sources[1])))


def test_rows_with_faults_are_refused_with_the_same_sentences(written):
    faulty = [{"question": None, "answer": "1"}, [1], *ROWS[:3]]
    doubled = [{**row, "id": min(n, 3)} for n, row in enumerate(ROWS[:6])]
    for rows in (faulty, doubled, [{"question": "", "answer": "1"}] * 30 + ROWS[:1]):
        path = written(rows)
        sentences = []
        for option in ("", ", streaming = true"):
            with pytest.raises(UserError) as caught:
                load_questions(recipe(f'path = "{path}"{option}'))
            sentences.append(caught.value.problems)
        assert sentences[0] == sentences[1]


def test_a_file_that_changes_is_refused_when_the_next_question_is_read(written):
    path = written(ROWS)
    questions = load_questions(recipe(f'path = "{path}", streaming = true')).train
    assert questions[3].text == ROWS[3]["question"]
    written(ROWS[::-1])
    for read in (lambda: questions[3], lambda: list(questions)):
        with pytest.raises(UserError, match="the file has changed since the run read it first"):
            read()


def test_what_needs_all_questions_in_memory_is_refused(written, tmp_path):
    path = written(ROWS)
    for setting, sentence in (
        ("eval_rows=4", "data.eval_rows = 4: not with streaming; name the held-out questions by data.eval_path"),
        ('select={file = "rates.jsonl"}', "data.select: not with streaming"),
    ):
        with pytest.raises(RecipeError) as caught:
            load(None, ["model=m", f'data.path={{path = "{path}", streaming = true}}', f"data.{setting}"])
        assert sentence in str(caught.value)
    (tmp_path / "rows.csv").write_text("question,answer\n1+1=,2\n")
    with pytest.raises(UserError, match=r"rows\.csv: cannot be streamed; expected a \.jsonl or \.parquet file"):
        load_questions(recipe(f'path = "{tmp_path}/rows.csv", streaming = true'))


def test_a_large_file_is_read_with_a_third_of_its_size_and_streamed_with_a_sixtieth(tmp_path):
    path, long = tmp_path / "large.jsonl", "x" * 100_000
    with path.open("w") as file:
        for n in range(600):
            file.write(json.dumps({"question": f"{n}+1=", "answer": str(n + 1), "text": long}) + "\n")
    assert path.stat().st_size > 60_000_000
    tracemalloc.start()
    questions = load_questions(recipe(f'path = "{path}", streaming = true'))
    assert isinstance(questions.train, StreamedQuestions)
    prompts = stream_prompts(questions.train, TOKENIZER)
    assert isinstance(prompts, StreamedPrompts)
    batches = Prompts(prompts, per_step=4)
    for _ in range(20):
        batches.take(4)
    now, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now < 1_000_000
    assert highest < 20_000_000  # a hundred rows at once, by which the columns are detected
