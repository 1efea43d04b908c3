"""Print the memory that `outdo check` estimates for models from 0.5 B to 32 B, as docs/large-models.md has it.

    python benchmarks/large_models.py

The models have the shapes of Qwen2.5, which are written here: nothing is downloaded, and nothing is trained.
"""

from dataclasses import dataclass

from outdo.config.file import load
from outdo.models.inspect_folder import ModelFacts
from outdo.run.check import cost

GIB = 2**30
ADAPTER = "train.adapter={name = 'lora', rank = 32}"
COMMON = [
    "train.group_size=8",
    "train.objective.beta=0.0",
    "train.gradient_checkpointing=true",
    "train.micro_batch_tokens=2048",
]
LAPTOP = ["device=cpu", "train.prompts=4", "data.max_prompt_tokens=256", "sampling.max_tokens=256"]
GPU = ["device=cuda", "train.prompts=8", "data.max_prompt_tokens=512", "sampling.max_tokens=1024"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model of Qwen2.5."""

    name: str
    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 152_064
    tied: bool = False

    def facts(self) -> ModelFacts:
        """Return what `outdo check` reads from the files of such a model, with weights in bfloat16."""
        head_dim = self.hidden // self.heads
        kv = self.kv_heads * head_dim
        layer = [(self.hidden, self.hidden)] * 2 + [(kv, self.hidden)] * 2
        layer += [(self.mlp, self.hidden)] * 2 + [(self.hidden, self.mlp)]
        rest = 2 * self.hidden + self.hidden + 2 * kv  # norms, and the biases of queries, keys and values
        matrices = sum(rows * columns for rows, columns in layer)
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return ModelFacts(
            name="m",
            folder=None,
            architecture="Qwen2ForCausalLM",
            model_type="qwen2",
            parameters=self.layers * (matrices + rest) + embeddings + self.hidden,
            dtype="bfloat16",
            layer_matrices=tuple(layer * self.layers),
            hidden_size=self.hidden,
            layers=self.layers,
            attention_layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=head_dim,
            vocab_size=self.vocabulary,
            kv_numbers=2 * self.layers * kv,
            max_positions=32_768,
        )


SHAPES = (
    Shape(name="0.5 B", hidden=896, mlp=4864, layers=24, heads=14, kv_heads=2, vocabulary=151_936, tied=True),
    Shape(name="1.5 B", hidden=1536, mlp=8960, layers=28, heads=12, kv_heads=2, vocabulary=151_936, tied=True),
    Shape(name="3 B", hidden=2048, mlp=11_008, layers=36, heads=16, kv_heads=2, vocabulary=151_936, tied=True),
    Shape(name="7 B", hidden=3584, mlp=18_944, layers=28, heads=28, kv_heads=4),
    Shape(name="14 B", hidden=5120, mlp=13_824, layers=48, heads=40, kv_heads=8),
    Shape(name="32 B", hidden=5120, mlp=27_648, layers=64, heads=40, kv_heads=8),
)


def row(shape: Shape, settings: list[str]) -> str:
    """Return a row of the table: the peak of each way in GiB, and the KV cache, which is a part of it."""
    facts = shape.facts()
    recipe = load(None, ["model=m", "data.path=d", *COMMON, *settings, ADAPTER])
    ways = cost.alternatives(facts, recipe, reference=False)
    peaks = " | ".join(f"{cost.peak(ways[way]) / GIB:.0f}" for way in ("full", "LoRA", "QLoRA"))
    cache = ways["full"]["KV cache while sampling"] / GIB
    return f"| {shape.name} | {(facts.parameters or 0) / 1e9:.2f} | {peaks} | {cache:.1f} |"


def tables() -> str:
    """Return a table for a laptop and one for a GPU."""
    lines: list[str] = []
    for device, settings, shapes in (("a laptop", LAPTOP, SHAPES[:3]), ("one GPU", GPU, SHAPES)):
        lines += [f"{device}: {' '.join([*COMMON, *settings])}", ""]
        lines += ["| | weights, billion | full, GiB | LoRA, GiB | QLoRA, GiB | KV cache in them, GiB |"]
        lines += ["|---|---|---|---|---|---|", *(row(shape, settings) for shape in shapes), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())
