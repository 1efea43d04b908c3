"""Train the runs of the gallery, and keep of each what its page shows: python docs/gallery/make.py [FOLDER]

FOLDER is where the runs are trained, an empty one or one where this was stopped; unset: gallery, here. It takes some
minutes on two CPU cores. The archives are written next to this script; `docs/site.py` makes a page of each.
"""

import json
import subprocess
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"

ROWS = "eval.rows=64"
QUICKSTART = Path("quickstart/seed-0/run-1")
RUNS = {
    "quickstart": (QUICKSTART, ["quickstart", "--task", "sums", ROWS]),
    "ppo": (Path("ppo"), ["train", f"{EXAMPLES}/ppo.toml", "run=./ppo", ROWS]),
    "diverged": (
        Path("diverged"),
        ["train", f"{QUICKSTART}.toml", "run=./diverged", "optim.lr=1e-2", "steps=12", "eval.every=6", ROWS],
    ),
    "calculator": (
        Path("quickstart/calculator/seed-0/run-1"),
        ["quickstart", "--task", "calculator"],
    ),
}
"""The folder of each run, and the command that trains it."""

WHOLE = ("recipe.toml", "metrics.jsonl", "summary.json")
FACTS = ("python", "outdo", "torch", "transformers", "device", "seed", "started")
"""What is kept of `environment.json`: nothing about the machine."""

RECORDED = 3
"""The tokens of so many steps are kept: the first, the last, and those between them."""


def main(folder: Path) -> None:
    """Train what is missing, and write all archives."""
    folder.mkdir(exist_ok=True)
    for name, (run, arguments) in RUNS.items():
        if not (folder / run / "summary.json").exists():
            subprocess.run([sys.executable, "-m", "outdo", *arguments], cwd=folder, check=True)
        keep(folder / run, HERE / f"{name}.zip", private=folder.resolve())


def keep(run: Path, archive: Path, *, private: Path) -> None:
    """Write an archive of a run folder, without the path `private` in its files. Equal runs make equal archives."""
    tokens = _spread(sorted(run.glob("tokens/step_*.parquet")), RECORDED)
    answers = _spread(sorted(run.glob("held_out/step_*.jsonl")), 2)
    with ZipFile(archive, "w", ZIP_DEFLATED) as file:
        for path in sorted([*(run / name for name in WHOLE), *tokens, *answers]):
            data = path.read_bytes()
            if path.suffix != ".parquet":
                data = data.replace(f"{private}/".encode(), b"")
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
