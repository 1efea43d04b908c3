r"""Count the wrong verdicts of outdo's matchers and of other libraries' scorers on odd answers.

    python benchmarks/answers.py                                        # the table of docs/rewards.md
    python benchmarks/answers.py --solutions example_model_solutions.jsonl

The odd answers are `tests/rewards/odd_answers.jsonl`: written by hand, each with the verdict of a person. The matchers
were improved on them, except on those marked as unseen.

`--solutions` takes the graded solutions of GSM8K (`grade_school_math/data` of github.com/openai/grade-school-math),
writes the answer of each in eight notations, and prints the share of verdicts that agree with the grades.

math-verify and TRL are called. The scorers of verl are not installed: the functions `verl_*` restate their rules, as
its source of August 2026 has them.
"""

import argparse
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from math_verify import parse, verify
from trl.rewards import accuracy_reward

from outdo.rewards.last_number import last_number
from outdo.rewards.math import math
from outdo.rewards.multiple_choice import multiple_choice

ODD_ANSWERS = Path(__file__).parents[1] / "tests/rewards/odd_answers.jsonl"

Scorer = Callable[[str, str], bool]
"""Returns the verdict on a completion and a reference."""

NOTATIONS: Mapping[str, Callable[[str, str], str]] = {
    "A: n": lambda working, answer: f"{working}\nA: {answer}",
    "#### n": lambda working, answer: f"{working}\n#### {answer}",
    "box": lambda working, answer: rf"{working}" + "\n" + rf"So it is $\boxed{{{answer}}}$.",
    "tags": lambda working, answer: f"<think>{working}</think>\n<answer>{answer}</answer>",
    "the answer is n.": lambda working, answer: f"{working}\nThe answer is {answer}.",
    "headings, bold": lambda working, answer: f"#### Solution\n{working}\n\n#### Answer\n\n**{answer}**",
    "LaTeX in a sentence": lambda working, answer: f"{working}\nTherefore the total is \\( {answer} \\).",
    "bold in a sentence": lambda working, answer: f"{working} So that makes **{answer}** in all.",
}
"""The answer of a GSM8K solution, written in different ways."""


def main() -> None:
    """Print the table of odd answers, or that of the graded solutions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solutions", type=Path, help="example_model_solutions.jsonl of GSM8K")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # math-verify logs what it cannot parse
    print("\n".join(_graded_table(arguments.solutions) if arguments.solutions else _odd_table()))


def _odd_table() -> Iterator[str]:
    rows = [json.loads(line) for line in ODD_ANSWERS.read_text("utf-8").splitlines()]
    mathematics = [row for row in rows if row["kind"] != "letters"]
    cases = {
        "outdo `last_number`": [row for row in mathematics if _verdict(last_number, row) is not None],
        "outdo `multiple_choice`": [row for row in rows if row["kind"] == "letters"],
    }
    right = sum(row["right"] for row in rows)
    yield f"{len(rows)} answers, {right} right, {len(rows) - right} wrong; {sum(row['unseen'] for row in rows)} unseen"
    yield "| scorer | wrong accepted | right rejected | of | errors on unseen answers | of |"
    yield "|---|---|---|---|---|---|"
    for name, scorer in {**SCORERS, "outdo `multiple_choice`": multiple_choice}.items():
        seen, unseen = [], []
        for row in cases.get(name, mathematics):
            (unseen if row["unseen"] else seen).append((bool(_verdict(scorer, row)), row["right"]))
        accepted = sum(verdict and not right for verdict, right in seen)
        rejected = sum(right and not verdict for verdict, right in seen)
        errors = sum(verdict != right for verdict, right in unseen)
        yield f"| {name} | {accepted} | {rejected} | {len(seen)} | {errors} | {len(unseen)} |"


def _graded_table(path: Path) -> Iterator[str]:
    solutions = list(_graded(path))
    yield f"{len(solutions):,} solutions"
    yield f"| notation | {' | '.join(SCORERS)} |"
    yield "|---" * (len(SCORERS) + 1) + "|"
    for name, write in NOTATIONS.items():
        agreed = [
            sum(scorer(write(working, answer), reference) == grade for working, answer, reference, grade in solutions)
            for scorer in SCORERS.values()
        ]
        yield f"| {name} | " + " | ".join(f"{count / len(solutions):.2%}" for count in agreed) + " |"


def _graded(path: Path) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the working, the answer, the reference and the grade of each solution."""
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        reference = row["ground_truth"].rpartition("\nA: ")[2]
        for graded in row.values():
            if isinstance(graded, dict):
                working, _, answer = graded["solution"].rpartition("\nA: ")
                yield working, answer.strip(), reference, graded["is_correct"]


def _verdict(scorer: Scorer, row: Mapping[str, str]) -> bool | None:
    """Return the verdict; `None` if the scorer cannot read the reference."""
    try:
        return scorer(row["completion"], row["reference"])
    except ValueError:
        return None


def math_verify(completion: str, reference: str) -> bool:
    """Compare as the readme of math-verify does."""
    return verify(parse(reference), parse(completion))


def trl(completion: str, reference: str) -> bool:
    """Compare as TRL does; it leaves out answers to a reference that it cannot parse, which counts as a rejection."""
    return accuracy_reward([[{"role": "assistant", "content": completion}]], [reference])[0] == 1.0


def verl_gsm8k_strict(completion: str, reference: str) -> bool:
    """Compare the last `#### number` with the reference, as text without commas."""
    found = re.findall(r"#### (-?[0-9.,]+)", completion)
    return bool(found) and found[-1].replace(",", "") == reference


def verl_gsm8k_flexible(completion: str, reference: str) -> bool:
    """Compare the last run of digits, periods and commas with the reference, as text."""
    found = [run for run in re.findall(r"-?[0-9.,]+", completion) if run != "."]
    return bool(found) and found[-1] == reference


def verl_math(completion: str, reference: str) -> bool:
    """Compare the last box with the reference, as text in one spelling."""
    start = max(completion.rfind(r"\boxed"), completion.rfind(r"\fbox"))
    if start < 0:
        return False
    box, depth = completion[start:].partition("{")[2], 1
    for position, character in enumerate(box):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return _one_spelling(box[:position]) == _one_spelling(reference)
    return False


def _one_spelling(text: str) -> str:
    text = re.sub(r"\n|\\!|\\left|\\right|\^\{?\\circ\}?|\\\$|\\%", "", text.replace("\\\\", "\\"))
    text = re.sub(r"\\[td]frac", r"\\frac", text.partition(r"\text{ ")[0])
    text = re.sub(r"(?<=[ {])\.|^\.", "0.", text)
    text = re.sub(r"^[^=]{0,2}=([^=]*)$", r"\1", text)
    text = re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text).replace(" ", "")
    text = re.sub(r"\\frac([^{])([^{])", r"\\frac{\1}{\2}", text)
    text = r"\frac{1}{2}" if text == "0.5" else text
    return re.sub(r"^(-?\d+)/(-?\d+)$", r"\\frac{\1}{\2}", text)


SCORERS: Mapping[str, Scorer] = {
    "outdo `last_number`": last_number,
    "outdo `math`": math,
    "math-verify": math_verify,
    "TRL `accuracy_reward`": trl,
    "verl MATH": verl_math,
    "verl GSM8K, strict": verl_gsm8k_strict,
    "verl GSM8K, flexible": verl_gsm8k_flexible,
}
"""Those that read numbers."""


if __name__ == "__main__":
    main()
