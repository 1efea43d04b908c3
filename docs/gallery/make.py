"""Train the runs of the gallery, and keep of each what its page shows: python docs/gallery/make.py [FOLDER]

FOLDER is where the runs are trained, an empty one or one where this was stopped; unset: gallery, here. It takes half an
hour on two CPU cores. The archives are written next to this script; `docs/site.py` makes a page of each.
"""

import json
import subprocess
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from outdo.extras.quickstart.smollm2 import model_file
from outdo.models.gguf_folder import converted
from outdo.run.display import Display

OUTDO = ("-m", "outdo")
HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"

ROWS = "eval.rows=64"
DIVERGED = ("optim.lr=1e-2", "steps=12", "eval.every=6")
QUICKSTART = Path("quickstart/seed-0/run-1")
RUNS = {
    "instructions": (
        Path("instructions"),
        [
            [f"{EXAMPLES}/smollm2/data.py", "runs/smollm2/data"],
            [*OUTDO, "train", f"{EXAMPLES}/smollm2/instructions.toml", "model={smollm2}", "run=./instructions"],
        ],
    ),
    "ppo": (Path("ppo"), [[*OUTDO, "train", f"{EXAMPLES}/ppo.toml", "run=./ppo", ROWS]]),
    "diverged": (
        Path("diverged"),
        [
            [*OUTDO, "quickstart", "--task", "sums", ROWS],
            [
                *OUTDO,
                "train",
                f"{QUICKSTART}.toml",
                "run=./diverged",
                "optim.lr=1e-2",
                "steps=12",
                "eval.every=6",
                ROWS,
            ],
        ],
    ),
    "calculator": (
        Path("calculator"),
        [
            [f"{EXAMPLES}/small_models/make.py", "calculator"],
            [
                *OUTDO,
                "train",
                f"{EXAMPLES}/small_models/calculator.toml",
                "run=./calculator",
                f"environment.functions={EXAMPLES}/small_models/calculator.py:calc",
            ],
        ],
    ),
}
"""The folder of each run, and the commands of Python that train it."""

WHOLE = ("recipe.toml", "metrics.jsonl", "summary.json")
FACTS = ("python", "outdo", "torch", "transformers", "device", "seed", "started")
"""What is kept of `environment.json`: nothing about the machine."""

RECORDED = 3
"""The tokens of so many steps are kept: the first, the last, and those between them."""


def main(folder: Path) -> None:
    """Train what is missing, and write all archives."""
    folder.mkdir(exist_ok=True)
    smollm2 = converted(model_file(Display()))
    for name, (run, commands) in RUNS.items():
        for arguments in commands if not (folder / run / "summary.json").exists() else []:
            filled = [argument.format(smollm2=smollm2) for argument in arguments]
            subprocess.run([sys.executable, *filled], cwd=folder, check=True)
        keep(folder / run, HERE / f"{name}.zip", private=folder.resolve())


def keep(run: Path, archive: Path, *, private: Path) -> None:
    """Write an archive of a run folder, without the paths `private` and home in its files.

    Equal runs make equal archives.
    """
    tokens = _spread(sorted(run.glob("tokens/step_*.parquet")), RECORDED)
    answers = _spread(sorted(run.glob("held_out/step_*.jsonl")), 2)
    with ZipFile(archive, "w", ZIP_DEFLATED) as file:
        for path in sorted([*(run / name for name in WHOLE), *tokens, *answers]):
            data = path.read_bytes()
            if path.suffix != ".parquet":
                data = data.replace(f"{private}/".encode(), b"").replace(f"{Path.home()}/".encode(), b"~/")
            file.writestr(_entry(str(path.relative_to(run))), data)
        facts = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        shown = json.dumps({name: facts[name] for name in FACTS}, indent=2) + "\n"
        file.writestr(_entry("environment.json"), shown)


def _spread(paths: list[Path], most: int) -> list[Path]:
    """Return the first one, the last one, and others between them at equal distances."""
    if len(paths) <= most:
        return paths
    return [paths[round(place * (len(paths) - 1) / (most - 1))] for place in range(most)]


def _entry(name: str) -> ZipInfo:
    entry = ZipInfo(name)
    entry.compress_type = ZIP_DEFLATED
    return entry


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("gallery"))
