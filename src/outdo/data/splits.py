"""The training and the held-out questions of a recipe: read from their files, split, selected and compared."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from outdo.config.data import Data, Selection
from outdo.config.environments import RowEnvironments, row_environments
from outdo.config.fields import CurriculumSection, Source, by_set
from outdo.config.names import ENVIRONMENT_REWARD
from outdo.config.recipe import Recipe
from outdo.data import pass_rates
from outdo.data.files import Rows, read_rows
from outdo.data.formats import Message
from outdo.data.pass_rates import PassRate
from outdo.data.questions import (
    Columns,
    Matchers,
    Question,
    check_answer_column,
    detect_columns,
    missing_columns,
    other_reference,
    to_questions,
)
from outdo.data.sequences import Joined, Lazy
from outdo.data.stored_rows import StoredRows, head_of, open_rows
from outdo.data.streaming import stream_questions
from outdo.rewards.matchers import reference_checks
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.extras import load_extra
from outdo.utils.text import counted

LEVELS_OF_TASK = "outdo.extras.gym.questions:levels"
"""What returns the levels of a task of reasoning-gym, called with its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The questions that a run trains on, and those that it is evaluated on."""

    train: Sequence[Question]  # a tuple, unless questions are streamed
    held_out: tuple[Question, ...]
    fingerprints: Mapping[str, str]  # SHA-256 by the recipe's key: data.path, data.eval_path, data.select
    notes: tuple[str, ...]  # for the user: the columns, the overlap, how many questions were selected
    weights: tuple[float, ...] = ()  # of the sources of the training questions; () where they are only appended
    commits: Mapping[str, str] = field(default_factory=dict)  # of data sets of the Hub, by the name of the repository
    sets: Mapping[str, str] = field(default_factory=dict)  # of held-out questions by their id, where sets have names
    curricula: Mapping[int, CurriculumSection] = field(default_factory=dict)  # of sources, by their place

    def evaluated(self, rows: int) -> list[Question]:
        """Return the held-out questions that a run evaluates: the first `rows`, or so many of each set with a name."""
        of_each: Counter[str] = Counter()
        chosen = []
        for question in self.held_out:
            of_each[name := self.sets.get(question.id, "")] += 1
            chosen += [question] if of_each[name] <= rows else []
        return chosen


def load_questions(recipe: Recipe, pinned: Mapping[str, str] | None = None) -> Questions:
    """Read the training and held-out questions of a recipe; data sets of the Hub from the commits in `pinned`.

    Raises `UserError` with all mistakes in its files.
    """
    data = recipe.data
    mistakes: list[str] = []
    rates: Mapping[str, PassRate] = {}
    sources = _read_sources(recipe, pinned, mistakes)
    by_key, fingerprints, notes = sources.questions, sources.fingerprints, sources.notes
    if data.select is not None:
        with _collect_mistakes(mistakes, "data.select"):
            rates, fingerprints["data.select"] = pass_rates.load(data.select.file)
    if not mistakes and data.eval_rows >= len(by_key["data.path"]):
        mistakes.append(f"data.eval_rows = {data.eval_rows}: no row of {len(by_key['data.path'])} is left to train on")
    if mistakes:
        raise UserError(mistakes)
    if environments := row_environments(recipe.environment):
        notes.append(_environments_note(recipe, environments, by_key["data.path"]))
    train, held_out = _split(data, by_key, recipe.seed)
    if data.select is not None:
        selected = select(train, rates, data.select)
        notes.append(
            f"data.select: {len(selected):,} of {counted(len(train), 'training question')} kept: "
            f"{_range_text(data.select)}"
        )
        train = selected
    weights = tuple(source.weight for source in data.path if source.weight is not None)
    return Questions(
        train=train if isinstance(train, Lazy) else tuple(train),
        held_out=tuple(held_out),
        fingerprints=fingerprints,
        notes=(*notes, *_mixture_note(data.path)),
        weights=weights,
        commits=sources.commits,
        sets=_sets(data, held_out),
        curricula={index: file.curriculum for index, file in enumerate(data.path) if file.curriculum is not None},
    )


@dataclass(slots=True)
class _Sources:
    """What is in the files of a recipe."""

    questions: dict[str, Sequence[Question]]  # by the recipe's key
    fingerprints: dict[str, str] = field(default_factory=dict)  # these three as in `Questions`
    commits: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def _read_sources(recipe: Recipe, pinned: Mapping[str, str] | None, mistakes: list[str]) -> _Sources:
    """Read all files of a recipe; add to `mistakes`."""
    data = recipe.data
    matchers = reference_checks([reward.name for reward in recipe.rewards])
    parts: dict[str, list[Sequence[Question]]] = {"data.path": [], "data.eval_path": []}
    sources = _Sources({})
    for file in _files(data, mistakes):
        with _collect_mistakes(mistakes, file.name):
            streams = file.key == "data.path" and data.path[file.source].streaming
            read = _stream if streams else _read
            questions, rows, notes = read(recipe, file, pinned, matchers)
            parts[file.key].append(questions)
            sources.fingerprints[file.name] = rows.fingerprint
            sources.commits |= rows.commits
            commit = "".join(f"; commit {commit_of_file}" for commit_of_file in rows.commits.values())
            sources.notes += [f"{file.name}: {notes[0]}{commit}", *notes[1:]]
    sources.questions = {key: _joined(questions) for key, questions in parts.items()}
    return sources


def _read(
    recipe: Recipe, file: "_File", pinned: Mapping[str, str] | None, matchers: Matchers
) -> tuple[Sequence[Question], Rows, list[str]]:
    """Return the questions of a file, its rows, and notes."""
    rows = read_rows(file.path, limit=recipe.data.limit if file.key == "data.path" else None, pinned=pinned)
    columns = _columns(recipe, rows, matchers)
    questions = [
        replace(question, id=f"{file.prefix}{question.id}", source=file.source, level=file.level)
        for question in to_questions(rows, columns, matchers=matchers)
    ]
    with_tools = sum(bool(question.tools) for question in questions)
    tools = f"; {with_tools:,} with tools, which the chat template writes into the prompt" if with_tools else ""
    first = f"{counted(len(questions), 'question')}; {columns}{tools}"
    return questions, rows, [first, *other_reference(rows, columns), *missing_columns(rows)]


def _stream(
    recipe: Recipe, file: "_File", pinned: Mapping[str, str] | None, matchers: Matchers
) -> tuple[Sequence[Question], StoredRows, list[str]]:
    """Return the questions of a file, which stay on disk, its rows, and a note."""
    rows = open_rows(file.path, limit=recipe.data.limit, pinned=pinned)
    columns = _columns(recipe, head_of(rows), matchers)
    questions = stream_questions(rows, columns, matchers=matchers, prefix=file.prefix, source=file.source)
    first = f"{counted(len(questions), 'question')}, streamed from disk; {columns}"
    return questions, rows, [first, *other_reference(head_of(rows), columns)]


def _columns(recipe: Recipe, rows: Rows, matchers: Matchers) -> Columns:
    columns = detect_columns(rows, prompt=recipe.data.prompt, answer=recipe.data.answer)
    check_answer_column(matchers, rows, columns)
    environments = row_environments(recipe.environment)
    return replace(columns, environment_of=environments.name_in if environments else None)


def _environments_note(recipe: Recipe, environments: RowEnvironments, questions: Sequence[Question]) -> str:
    """Return how many questions each environment has.

    Raises `UserError` if none has any, or if a question has none and the environments give all rewards.
    """
    key, counts = f'"{environments.column}"', Counter[str | None]()
    by_environments = all(reward.name == ENVIRONMENT_REWARD for reward in recipe.rewards)
    for question in questions:
        counts[name := environments.name_in(question.columns)] += 1
        if name is None and by_environments:
            only = f'rewards = "{ENVIRONMENT_REWARD}" gives it none'
            raise UserError([f"data.path: question {question.id} names no environment in the column {key}; {only}"])
    if counts.keys() <= {None}:
        columns = sorted({name for question in questions[:100] for name in question.columns})
        hint = did_you_mean(environments.column, columns) or f" (columns: {', '.join(columns)})"
        raise UserError([f"environment.column: no question names an environment in a column {key}{hint}"])
    played = ", ".join(f"{name} {counts[name]:,}" for name in environments.pieces)
    return f"environment: questions of each, by the column {key}: {played}; one answer {counts[None]:,}"


def _joined(parts: Sequence[Sequence[Question]]) -> Sequence[Question]:
    """Return the questions of several files, one after the other; in memory unless one of them is streamed."""
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, Lazy) for part in parts):
        return Joined(parts)
    return [question for part in parts for question in part]


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    key: str  # data.path or data.eval_path
    name: str  # of the file in messages
    path: str
    prefix: str  # of the ids of its questions, so that they are unique among all files of the key: `2:7`, `gsm8k:7`
    source: int  # its place among the files of the key, or of its set
    level: int | None = None  # of a curriculum


def _files(data: Data, mistakes: list[str]) -> Iterator[_File]:
    """Yield the files of the training questions, each level of a curriculum as one, and those of the held-out ones."""
    keys = [("data.path", None, [source.path for source in data.path])]
    keys += [("data.eval_path", name, paths) for name, paths in by_set(data.eval_path or ()).items()]
    for key, of_set, paths in keys:
        for index, path in enumerate(paths):
            number = f"{index + 1}" if len(paths) > 1 else ""
            file = _File(
                key=key,
                name=key + (f".{of_set}" if of_set else "") + (f"[{number}]" if number else ""),
                path=path,
                prefix=(f"{of_set}:" if of_set else "") + (f"{number}:" if number else ""),
                source=index,
            )
            curriculum = data.path[index].curriculum if key == "data.path" else None
            with _collect_mistakes(mistakes, file.name):
                yield from _levels(file, curriculum)


def _levels(file: _File, curriculum: CurriculumSection | None) -> list[_File]:
    """Return the levels of a curriculum as files. Raises `UserError` if the task does not have one of them."""
    if curriculum is None:
        return [file]
    known = load_extra(LEVELS_OF_TASK, file.path)(file.path)
    if unknown := [level for level in curriculum.levels or () if level not in known]:
        raise UserError([f"curriculum.levels: expected levels from 0 to {known[-1]}, found {unknown[0]}"])
    sign = "&" if "?" in file.path else "?"
    return [
        replace(
            file,
            name=f"{file.name} level {level}",
            path=f"{file.path}{sign}level={level}",
            prefix=f"{file.prefix}level {level}:",
            level=level,
        )
        for level in curriculum.levels or known
    ]


def _sets(data: Data, held_out: Sequence[Question]) -> dict[str, str]:
    """Return the name of the set of each held-out question, by its id, which begins with it; nothing without names."""
    has_names = any(file.set for file in data.eval_path or ())
    return {question.id: question.id.partition(":")[0] for question in held_out} if has_names else {}


def _mixture_note(sources: Sequence[Source]) -> Iterator[str]:
    total = sum(source.weight or 0 for source in sources)
    if total and len(sources) > 1:
        shares = ", ".join(f"{(source.weight or 0) / total:.1%} {source.path}" for source in sources)
        yield f"data.path: shares of each batch: {shares}"


def hold_out(questions: Sequence[Question], rows: int, seed: int) -> tuple[list[Question], list[Question]]:
    """Split into `(train, held_out)` with `rows` held-out questions, both in the order of the file.

    The split depends only on the seed and the ids: the questions with the smallest SHA-256 of both are held out.
    """
    ranked = sorted(questions, key=lambda question: hashlib.sha256(f"{seed}:{question.id}".encode()).digest())
    chosen = {question.id for question in ranked[:rows]}
    train = [question for question in questions if question.id not in chosen]
    return train, [question for question in questions if question.id in chosen]


def select(questions: Sequence[Question], rates: Mapping[str, PassRate], by: Selection) -> list[Question]:
    """Return the questions whose pass rate lies within `[by.low, by.high]`, in their order.

    Raises `UserError` if questions have no rate, if their text is not the one that was rated, or if none is left.
    """
    unrated = [question for question in questions if question.id not in rates]
    rated = [question for question in questions if question.id in rates]
    changed = [
        question for question in rated if rates[question.id].fingerprint != pass_rates.fingerprint(question.text)
    ]
    selected = [question for question in rated if by.low <= rates[question.id].pass_rate <= by.high]
    mistakes = [
        f"data.select: {len(faulty):,} of {counted(len(questions), 'training question')} {fault} in {by.file}; "
        f"the first is question {faulty[0].id}{why}"
        for faulty, fault, why in (
            (unrated, "have no pass rate", " (`outdo eval --rates` writes none where no answer has a verdict)"),
            (changed, "have another text than the one rated", ""),
        )
        if faulty
    ]
    if not mistakes and not selected:
        everything = counted(len(questions), "training question")
        mistakes.append(f"data.select: none of the {everything} is left: {_range_text(by)}")
    if mistakes:
        raise UserError(mistakes)
    return selected


def _range_text(by: Selection) -> str:
    return f"pass rate from {by.low:g} to {by.high:g} in {by.file}"


def overlap(train: Sequence[Question], held_out: Sequence[Question]) -> int:
    """Count the held-out prompts that are also training prompts, compared in their normalised form."""
    texts = [normalise(question.text) for question in held_out]
    trained = set(texts).intersection(normalise(question.text) for question in train)
    return sum(text in trained for text in texts)


def normalise(prompt: str | Sequence[Message]) -> str:
    """Return a prompt in Unicode's NFKC form, without letter case, with every run of white space as one space."""
    text = prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@contextmanager
def _collect_mistakes(mistakes: list[str], key: str) -> Iterator[None]:
    """Add the mistakes in the file that `key` names to `mistakes`, and continue."""
    try:
        yield
    except UserError as error:
        mistakes += [f"{key}: {mistake}" for mistake in error.problems]


def _split(
    data: Data, by_key: Mapping[str, Sequence[Question]], seed: int
) -> tuple[Sequence[Question], Sequence[Question]]:
    """Return the training and the held-out questions."""
    if not data.eval_rows:
        return by_key["data.path"], by_key["data.eval_path"]
    return hold_out(by_key["data.path"], data.eval_rows, seed)
