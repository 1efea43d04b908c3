"""Rows become questions: columns are detected, every faulty row is reported, and held-out rows are separate."""

import csv
import hashlib
import json
import os
import re
import sys
import types
from contextlib import suppress
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outdo.config.file import load
from outdo.data.files import fingerprint, read_rows
from outdo.data.questions import LONGEST_PROMPT, questions_from
from outdo.data.splits import hold_out, load_questions, overlap
from outdo.utils.errors import UserError

ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(10)]
EXCERPT = Path(__file__).parents[2] / "examples" / "gsm8k_100.jsonl"


@pytest.fixture
def jsonl(tmp_path):
    def written(rows, name="data.jsonl"):
        path = tmp_path / name
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path.write_bytes(b"\n".join(lines))
        return str(path)

    return written


def mistakes(path, **columns):
    with pytest.raises(UserError) as caught:
        questions_from(path, **columns)
    return [line.removeprefix(path).lstrip(":, ") for line in caught.value.problems]


def of(path, *overrides):
    return load_questions(load(None, ["model=m", f"data.path={path}", *overrides]))


# -------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_format_gives_the_same_questions(jsonl, tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    if suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, ["question", "answer"])
            writer.writeheader()
            writer.writerows(ROWS)
    elif suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif suffix == ".json":
        path.write_text(json.dumps(ROWS))
    else:
        jsonl(ROWS)
    assert [(q.text, q.answer) for q in questions_from(str(path))] == [(r["question"], r["answer"]) for r in ROWS]


def test_gsm8k_is_read_unchanged():
    folder = os.environ.get("OUTDO_GSM8K")
    paths = {Path(folder, "train.jsonl"): 7473, Path(folder, "test.jsonl"): 1319} if folder else {EXCERPT: 100}
    for path, count in paths.items():
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        questions = questions_from(str(path))
        assert len(questions) == len(rows) == count
        assert [(q.text, q.answer, q.columns) for q in questions] == [(r["question"], r["answer"], r) for r in rows]


def test_rows_of_a_program_are_the_same_questions_as_those_of_a_file(jsonl):
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4", "level": 3}, {"prompt": "a"}]
    assert questions_from(rows, limit=2) == questions_from(jsonl(rows), limit=2)
    with pytest.raises(UserError, match=r"the rows, row 2: expected an object with columns"):
        questions_from([rows[0], "2+2="])  # type: ignore[list-item]
    with pytest.raises(UserError, match="the rows: is empty"):
        questions_from([])


@pytest.mark.parametrize("found", [Path("questions.jsonl"), {"prompt": "1+1="}, {"1+1="}, 3])
def test_what_is_neither_a_path_nor_rows_is_refused(found):
    with pytest.raises(TypeError, match=r"as text, or a list of rows, found (PosixPath|dict|set|int)"):
        questions_from(found)


def test_blank_lines_and_a_byte_order_mark_are_ignored(jsonl):
    path = jsonl([b'\xef\xbb\xbf{"prompt": "a"}', b"", b'{"prompt": "b"}\r', b""])
    assert [(q.id, q.text) for q in questions_from(path)] == [("1", "a"), ("3", "b")]


def test_rows_after_the_limit_are_not_read(jsonl):
    path = jsonl([*ROWS[:2], b"broken"])
    assert len(questions_from(path, limit=2)) == 2


def test_the_hub_is_contacted_only_if_the_path_cannot_be_a_file(monkeypatch, tmp_path):
    requests = []

    def load_dataset(name, split):
        requests.append((name, split))
        if name == "owner/gone":
            raise ConnectionError("offline\nand more")
        return iter(ROWS)

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert len(questions_from("owner/name:test", limit=3)) == 3
    assert len(questions_from("owner/name")) == 10
    assert requests == [("owner/name", "test"), ("owner/name", "train")]
    assert mistakes("owner/gone") == ["the data set cannot be loaded: ConnectionError: offline"]
    for local in ("data/train", "owner/train.jsonl", "train", "./owner/name", "../owner/name", "owner/../name"):
        assert mistakes(local)[0].startswith("no such file")
    assert len(requests) == 3


def test_the_fingerprint_is_the_files_sha256_and_changes_with_it(jsonl):
    path = jsonl(ROWS)
    first = of(path).fingerprints
    assert (
        first == {"data.path": hashlib.sha256(Path(path).read_bytes()).hexdigest()} == {"data.path": fingerprint(path)}
    )
    jsonl(ROWS[::-1])
    assert of(path).fingerprints != first


# -------------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"question": "a", "answer": "b"}, "question -> prompt, answer -> answer"),
        ({"ground_truth": "b", "prompt": "a", "question": "c"}, "prompt -> prompt, ground_truth -> answer"),
        (
            {"prompt": [{"role": "user", "content": "a"}], "reward_model": {"style": "rule", "ground_truth": "b"}},
            "prompt -> prompt, reward_model.ground_truth -> answer",
        ),
    ],
)
def test_columns_are_detected_and_noted(jsonl, row, line):
    path = jsonl([row])
    assert questions_from(path)[0].answer == "b"
    assert f"data.path: 1 question; columns: {line}" in of(path).notes


def test_a_reference_of_verl_beside_another_one_is_noted(jsonl):
    rows = [{"prompt": f"{n}", "answer": f"so {n}", "reward_model": {"ground_truth": f"{n}"}} for n in range(3)]
    path = jsonl(rows)
    (note,) = [each for each in of(path).notes if "reward_model" in each]
    assert "in 3 rows reward_model.ground_truth differs from answer: reward functions of verl's form get" in note
    streamed = of(path, f"data.path=[{{path='{path}', streaming=true}}]")
    assert [each for each in streamed.notes if "in 3 rows reward_model.ground_truth differs" in each]
    assert not [each for each in of(path, "data.answer=reward_model.ground_truth").notes if "differs" in each]
    same = jsonl([row | {"answer": row["reward_model"]["ground_truth"]} for row in rows], "same.jsonl")
    assert not [each for each in of(same).notes if "differs" in each]


def test_the_error_for_a_missing_column_offers_the_nearest_name(jsonl):
    assert mistakes(jsonl(ROWS), prompt="questoin", answer="anwser") == [
        'no column "questoin" (named by data.prompt); did you mean question? (columns: question, answer)',
        'no column "anwser" (named by data.answer); did you mean answer? (columns: question, answer)',
    ]
    assert mistakes(jsonl([{"a": 1}])) == ["no column looks like the question; name it: data.prompt=NAME (columns: a)"]


def test_a_column_whose_name_has_other_letters_is_offered(jsonl):
    rows = [{"Question": "a", "Answer": "b"}]
    assert mistakes(jsonl(rows)) == [
        "no column looks like the question; name it: data.prompt=Question (columns: Question, Answer)"
    ]
    with pytest.raises(UserError, match=r"which the reward exact needs; name it: data.answer=Answer \(columns"):
        of(jsonl(rows), "data.prompt=Question")


def test_a_reward_that_compares_needs_an_answer_column(jsonl):
    path = jsonl([{"question": "a"}])
    assert of(path, "rewards=format").train[0].answer is None
    with pytest.raises(UserError, match=r"which the reward exact needs; name it: data.answer=NAME"):
        of(path)


def test_references_that_the_reward_can_never_match_are_refused_with_their_rows(jsonl):
    answers = ["18", r"\frac{1}{2}", "#### 1,234", "10:30", "2k+2", "18 eggs"]
    path = jsonl([{"question": f"q{number}", "answer": answer} for number, answer in enumerate(answers)])
    with pytest.raises(UserError) as caught:
        of(path, "rewards=last_number")
    assert [re.search(r"row \d+", line)[0] for line in caught.value.problems] == ["row 2", "row 4", "row 5"]
    assert all(str(path) in line and 'the reward "math"' in line for line in caught.value.problems)
    assert len(of(path, "rewards=math").train) == len(of(path, "rewards=exact").train)
    with pytest.raises(UserError, match="row 1: the reward multiple_choice: the reference answer is not one letter"):
        of(path, "rewards=multiple_choice")


def test_a_reference_that_is_a_list_is_refused_with_its_row_by_rewards_that_compare_text(jsonl):
    path = jsonl([*ROWS[:2], {"question": "a", "answer": ["18"]}])
    expected = "row 3: the reward exact: the reference answer is a list, expected text or a number: ['18']"
    with pytest.raises(UserError) as caught:
        of(path, "rewards=exact")
    assert caught.value.problems == (f"data.path: {path}, {expected}",)
    assert len(of(path, "rewards=format").train) == 3


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": "a", "anwser": "b"}, 'no column "answer"; did you mean anwser?'),
        ({"question": None, "answer": "b"}, 'column "question" is null'),
        ({"question": " \n", "answer": "b"}, 'column "question" is empty'),
        (
            {"question": [{"role": "assistant", "content": "a"}], "answer": "b"},
            "has an answer by the assistant, and no question",
        ),
        ({"question": "x" * (LONGEST_PROMPT + 1), "answer": "b"}, "has 1,000,001 characters, more than 1,000,000"),
        (b'{"question": "a\xff", "answer": "b"}', "not UTF-8 text (byte 15 of the line)"),
        (b'{"question": "a\\u0000", "answer": "b"}', 'column "question" holds a NUL character'),
        (b'{"question": "a", "answer": ["\\ud800"]}', 'column "answer" holds half of a surrogate pair'),
        (b'{"question": "a", "answer": NaN}', 'column "answer" holds nan, which is not a finite number'),
        (
            b'{"question": "a", "answer": -' + b"9" * 5000 + b"}",
            'column "answer" holds an integer of 5,000 digits, more than 4,300; write it as text',
        ),
        (b'{"question": "a", "answer": 1e999}', 'column "answer" holds inf'),
        (b'{"question": "a", "question": "b"}', '"question" is given twice'),
        (b'{"question": "a"', "broken JSON: Expecting ',' delimiter (column 17)"),
        (b"[" * 100_000, "nested too deeply"),
        ({"id": "1", "question": "a", "answer": "b"}, 'the id "1" is also that of row 1'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_faulty_row_is_reported_with_its_number_and_reason(jsonl, row, reason):
    reported = mistakes(jsonl([ROWS[0], ROWS[1], row, ROWS[2]]))
    assert len(reported) == 1
    assert reported[0].startswith("row 3: ")
    assert reason in reported[0]


def test_all_faults_of_both_files_are_reported_at_once(jsonl):
    path = jsonl([ROWS[0], b"{", ROWS[1], {"question": None, "answer": "b"}])
    with pytest.raises(UserError) as caught:
        of(path, "data.eval_path=nowhere.jsonl")
    starts = [
        f"data.path: {path}, row 2: ",
        f"data.path: {path}, row 4: ",
        "data.eval_path: nowhere.jsonl: no such file",
    ]
    assert all(line.startswith(start) for line, start in zip(caught.value.problems, starts, strict=True))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", b"", "is empty"),
        ("a.json", b'{"question": []}', "expected a list of rows"),
        (
            "a.json",
            b'[{"question": "a", "answer": ' + b"9" * 5000 + b"}]",
            'row 1: column "answer" holds an integer of 5,0',
        ),
        ("a.json", b'[{"question": "a", "answer": -Infinity}]', 'row 1: column "answer" holds -inf'),
        ("a.json", b"[\n\xff]", "not UTF-8 text (line 2, byte 2 of the file)"),
        ("a.csv", b"question,question\na,b\n", "the header names question twice"),
        ("a.csv", b"question,answer\na,b\na,b,c\n", "row 2: it has 3 fields, the header 2"),
        ("a.parquet", b"PAR1 no", "not a whole Parquet file"),
        ("a.txt", b"a", "unknown format; expected a file ending in .jsonl, .json, .csv, .parquet"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    assert reason in mistakes(str(tmp_path / name))[0]


def test_a_long_text_of_a_csv_file_is_read(tmp_path):
    (tmp_path / "a.csv").write_text(f"question,answer\n{'a' * 140_000},b\n")
    (question,) = questions_from(str(tmp_path / "a.csv"))
    assert len(question.text) == 140_000


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"question;answer\na;b\n", "its columns are separated by semicolons; expected commas"),
        ("a.csv", b"question\tanswer\na\tb\n", "its columns are separated by tabs; expected commas"),
        *[
            (name, '[{"question": "a"},\n{"question": "b"}]'.encode("utf-16"), "is UTF-16 text; expected UTF-8")
            for name in ("a.jsonl", "a.json", "a.csv")
        ],
        ("a.json", b"\xff", "not UTF-8 text (line 1, byte 0 of the file)"),
        (
            "a.json",
            b'{"question": "a"}\n{"question": "b"}',
            "broken JSON in line 2: Extra data; one row a line is .jsonl",
        ),
    ],
)
def test_another_encoding_or_separator_is_one_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        questions_from(str(tmp_path / name))
    assert caught.value.problems == (f"{tmp_path / name}: {sentence}",)


def test_errors_for_a_missing_file_and_a_folder_offer_existing_files(jsonl, tmp_path):
    path = jsonl(ROWS)
    assert mistakes(str(tmp_path / "dta.jsonl"))[0].endswith("did you mean data.jsonl?")
    assert mistakes(str(tmp_path)) == [f"is a folder; name a file in it, such as {path}"]
    assert mistakes("a\0.jsonl")[0].startswith("no such file")


@given(
    st.binary() | st.lists(st.dictionaries(st.sampled_from(["question", "answer", "id"]), st.text())).map(json.dumps)
)
def test_any_content_gives_questions_or_a_user_error(tmp_path_factory, content):
    for suffix in (".jsonl", ".json", ".csv", ".parquet"):
        path = tmp_path_factory.getbasetemp() / f"fuzzed{suffix}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with suppress(UserError):
            assert questions_from(str(path))


# ------------------------------------------------------------------------------------------------------------- held out


def test_the_held_out_rows_depend_only_on_seed_and_ids(jsonl):
    questions = questions_from(jsonl(ROWS))
    train, held_out = hold_out(questions, 3, seed=0)
    assert (len(train), len(held_out)) == (7, 3)
    assert {q.id for q in train} | {q.id for q in held_out} == {q.id for q in questions}
    assert set(map(id, hold_out(questions[::-1], 3, seed=0)[1])) == set(map(id, held_out))
    assert any(hold_out(questions, 3, seed=seed)[1] != held_out for seed in range(1, 5))


@pytest.mark.parametrize(
    ("trained", "held_out"),
    [
        ("Solve 12 + 3", "Solve \uff11\uff12 \uff0b \uff13"),  # full-width digits and plus sign
        ("Find x\u00b2", "\ufb01nd x2"),  # a superscript, and a ligature
        ("Caf\u00e9", "cafe\u0301"),  # an accent as part of the letter, and as a character of its own
    ],
)
def test_the_overlap_finds_the_same_text_in_another_unicode_form(jsonl, trained, held_out):
    path = jsonl([{"question": trained, "answer": "1"}])
    eval_path = jsonl([{"question": held_out, "answer": "1"}, {"question": "Other", "answer": "1"}], "eval.jsonl")
    questions = of(path, f"data.eval_path={eval_path}")
    assert overlap(questions.train, questions.held_out) == 1


def test_the_excerpt_is_the_beginning_of_gsm8k():
    assert len(read_rows(str(EXCERPT)).values) == 100
    assert (EXCERPT.parent / "GSM8K_LICENSE").read_text().startswith("MIT License")
    if folder := os.environ.get("OUTDO_GSM8K"):
        assert Path(folder, "train.jsonl").read_bytes().startswith(EXCERPT.read_bytes())


@pytest.mark.parametrize(("column", "image"), [("image", "1.png"), ("images", [{"bytes": "iVBO"}])])
def test_questions_with_images_are_refused_in_one_sentence(written, column: str, image: object):
    rows = [{"question": f"What is in picture {n}?", "answer": "1", column: image if n else None} for n in range(3)]
    with pytest.raises(UserError) as caught:
        questions_from(written(rows))
    (sentence,) = caught.value.problems
    assert f'2 of 3 questions have images (column "{column}", the first in row 2); outdo trains models that' in sentence
    assert len(questions_from(written([row | {column: None} for row in rows]))) == 3
