"""The cases of the benchmark: shapes of models and lengths of batches. Nothing here loads torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["step", "sampling", "scores", "counts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Qwen3 model with random weights and tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is timed. A step samples `prompts` groups, and makes one update on all of them; `sampling` has no update."""

    name: str
    about: str
    kind: Kind = "step"
    shape: Shape
    prompts: int = 1
    prompt_tokens: int = 0
    answers: tuple[int, ...] = ()  # tokens of each answer of a group
    tokens: int = 0  # scored, in a case without a step
    rank: int = 0  # of a LoRA in all linear layers, which is trained instead of the weights; 0: there is none

    @property
    def group(self) -> int:
        """Answers to a prompt."""
        return len(self.answers)

    @property
    def sampled(self) -> int:
        """Tokens of all answers."""
        return self.prompts * sum(self.answers)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for another process."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Case":
        """Make a case from the fields."""
        return cls(**{**fields, "shape": Shape(**fields["shape"]), "answers": tuple(fields["answers"])})


SMALL = Shape(hidden=128, layers=4, heads=4, kv_heads=2, mlp=384, vocabulary=64)
MEDIUM = Shape(hidden=512, layers=6, heads=8, kv_heads=4, mlp=1024, vocabulary=512)
SMOLLM2 = Shape(hidden=576, layers=30, heads=9, kv_heads=3, mlp=1536, vocabulary=49_152)
LARGE = Shape(hidden=1024, layers=28, heads=16, kv_heads=8, mlp=3072, vocabulary=151_936)

CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case(
            name="small-8x8",
            about="the quickstart's model (0.8 M), 8 prompts x 8 answers of 39 tokens",
            shape=SMALL,
            prompts=8,
            prompt_tokens=8,
            answers=(39,) * 8,
        ),
        Case(
            name="small-32x8",
            about="the same model, 32 prompts x 8 answers of 39 tokens",
            shape=SMALL,
            prompts=32,
            prompt_tokens=8,
            answers=(39,) * 8,
        ),
        Case(
            name="medium-8x8",
            about="14 M, 8 prompts x 8 answers of 40 tokens",
            shape=MEDIUM,
            prompts=8,
            prompt_tokens=16,
            answers=(40,) * 8,
        ),
        Case(
            name="medium-prompt-384",
            about="14 M, 2 prompts of 384 tokens x 16 answers of 64",
            shape=MEDIUM,
            prompts=2,
            prompt_tokens=384,
            answers=(64,) * 16,
        ),
        Case(
            name="medium-long-tail",
            about="14 M, one prompt x 32 answers: one of 448 tokens, 31 of 32",
            shape=MEDIUM,
            prompts=1,
            prompt_tokens=16,
            answers=(448, *(32,) * 31),
        ),
        Case(
            name="smollm2-8x8",
            about="135 M (SmolLM2's shape), 8 prompts of 16 tokens x 8 answers of 40; --model takes the model itself",
            shape=SMOLLM2,
            prompts=8,
            prompt_tokens=16,
            answers=(40,) * 8,
        ),
        Case(
            name="smollm2-4x8",
            about="the same shape, 4 prompts of 24 tokens x 8 answers of 32",
            shape=SMOLLM2,
            prompts=4,
            prompt_tokens=24,
            answers=(32,) * 8,
        ),
        Case(
            name="smollm2-prompt-384",
            about="the same shape, one prompt of 384 tokens x 16 answers of 32",
            shape=SMOLLM2,
            prompts=1,
            prompt_tokens=384,
            answers=(32,) * 16,
        ),
        *(
            Case(
                name=f"sampling-{rows}",
                about=f"sampling alone: SmolLM2's shape or --model, {rows} answers of 32 tokens to prompts of 24",
                kind="sampling",
                shape=SMOLLM2,
                prompts=-(-rows // 8),
                prompt_tokens=24,
                answers=(32,) * min(rows, 8),
            )
            for rows in (1, 8, 32, 64)
        ),
        Case(
            name="small-lora",
            about="small-8x8 with LoRA of rank 16 in all linear layers",
            shape=SMALL,
            prompts=8,
            prompt_tokens=8,
            answers=(39,) * 8,
            rank=16,
        ),
        Case(
            name="medium-lora",
            about="medium-8x8 with LoRA of rank 16 in all linear layers",
            shape=MEDIUM,
            prompts=8,
            prompt_tokens=16,
            answers=(40,) * 8,
            rank=16,
        ),
        Case(
            name="vocabulary",
            about="log-probabilities, entropy and backward of 8,192 tokens, vocabulary 151,936",
            kind="scores",
            shape=Shape(hidden=128, layers=1, heads=4, kv_heads=2, mlp=384, vocabulary=151_936),
            tokens=8192,
        ),
        Case(
            name="counts",
            about="operations and memory of a decoding and of a training step, counted, not timed",
            kind="counts",
            shape=Shape(hidden=32, layers=2, heads=4, kv_heads=2, mlp=64, vocabulary=64),
            prompts=2,
            prompt_tokens=6,
            answers=(12,) * 4,
        ),
        Case(
            name="large-64x8",
            about="0.6 B (Qwen3's shape), 64 prompts x 8 answers of 512 tokens: for an accelerator",
            shape=LARGE,
            prompts=64,
            prompt_tokens=64,
            answers=(512,) * 8,
        ),
    )
}

USUAL = ("small-8x8", "small-32x8", "medium-8x8", "medium-prompt-384", "medium-long-tail", "vocabulary", "counts")
"""The cases that run if none is named."""
