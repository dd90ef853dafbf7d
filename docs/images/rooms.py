"""Draw the imports between the rooms of serl: python docs/images/rooms.py [FILE.svg]."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from pathlib import Path

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[2]


def main(target: Path) -> None:
    """Draw a matrix: how many modules of a room (row) import modules of another one (column)."""
    layers = runpy.run_path(str(ROOT / "tests/test_layers.py"))
    rooms = [*layers["ORDER"], "testing", "robots", "tasks", "sim"]
    counts: Counter[tuple[str, str]] = Counter()
    for path in layers["sources"](ROOT):
        importer = layers["module_name"](ROOT, path)
        found = {name for name in layers["imports"](ROOT, path) if name.startswith("serl.")}
        others = {layers["room_of"](name) for name in found} - {layers["room_of"](importer)}
        counts.update((layers["room_of"](importer), other) for other in others)
    figure, axes = plt.subplots(figsize=(8, 7))
    grid = [[counts[row, column] for column in rooms] for row in rooms]
    axes.imshow(grid, cmap="Blues", vmin=0, vmax=max(map(max, grid)))
    for i, row in enumerate(grid):
        for j, count in enumerate(row):
            if count:
                dark = count > max(map(max, grid)) / 2
                axes.text(j, i, count, ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(rooms)), rooms, rotation=60, ha="right")
    axes.set_yticks(range(len(rooms)), rooms)
    axes.set_xlabel("imported room")
    axes.set_ylabel("importing room")
    axes.set_title("Modules that import from another room: below the diagonal alone", fontsize=11)
    figure.tight_layout()
    matplotlib.rcParams["svg.hashsalt"] = "rooms"
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("rooms.svg"))
