"""Read a data set with LeRobot's own reader, in batches, and save what it read as .npz.

python lerobot_reader.py FOLDER OUT, by the Python of .venv-bridges
"""

from __future__ import annotations

import sys

import numpy as np
import torch

# LeRobot imports torchvision, whose wheel declares this operator only beside a torch with CUDA.
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402

folder, out = sys.argv[1:]
dataset = LeRobotDataset("lab/cubes", root=folder, video_backend="pyav")
batches = list(torch.utils.data.DataLoader(dataset, batch_size=5, shuffle=False))
columns: dict[str, np.ndarray] = {}
for name in batches[0]:
    parts = [batch[name] for batch in batches]
    columns[name] = (
        torch.cat(parts).numpy()
        if isinstance(parts[0], torch.Tensor)
        else np.array([each for part in parts for each in part])
    )
stats = {f"stats/{name}": each["mean"] for name, each in dataset.meta.stats.items()}
episodes = np.array([dataset.num_episodes, dataset.num_frames, dataset.fps])
np.savez(out, totals=episodes, **columns, **stats)
