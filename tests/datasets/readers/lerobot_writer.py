"""Write a data set with LeRobot's own writer, from the arrays of an .npz file.

python lerobot_writer.py ARRAYS FOLDER, by the Python of .venv-bridges
"""

from __future__ import annotations

import sys

import numpy as np
import torch

# LeRobot imports torchvision, whose wheel declares this operator only beside a torch with CUDA.
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402

path, folder = sys.argv[1:]
with np.load(path) as arrays:
    rows = dict(arrays)
ends, names = rows.pop("ends"), rows.pop("names").tolist()
features = {}
for name, values in rows.items():
    if values.dtype == np.uint8:
        axes = ["height", "width", "channels"]
        features[name] = {"dtype": "video", "shape": values.shape[1:], "names": axes}
    else:
        of = names if name == "action" else None
        features[name] = {"dtype": str(values.dtype), "shape": values.shape[1:], "names": of}
dataset = LeRobotDataset.create("lab/cubes", 10, features, folder, robot_type="panda")
for index in range(ends[-1]):
    frame = {name: values[index] for name, values in rows.items()}
    dataset.add_frame({**frame, "task": "pick cube"})
    if index + 1 in ends:
        dataset.save_episode(parallel_encoding=False)
dataset.finalize()
