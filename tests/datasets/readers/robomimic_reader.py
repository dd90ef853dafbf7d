"""Read a file with robomimic's own reader, in batches, and save what it read as .npz.

python robomimic_reader.py FILE OUT, by the Python of .venv-bridges
"""

from __future__ import annotations

import sys

import numpy as np
import torch

# Robomimic imports torchvision, whose wheel declares this operator only beside a torch with CUDA.
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import robomimic.utils.file_utils as files  # noqa: E402
import robomimic.utils.obs_utils as observations  # noqa: E402
from robomimic.utils.dataset import SequenceDataset  # noqa: E402

path, out = sys.argv[1:]
low, rgb = ["tcp_from_start"], ["front_image"]
observations.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": low, "rgb": rgb}})
keys = ("actions", "rewards", "dones")
dataset = SequenceDataset(path, obs_keys=(*low, *rgb), dataset_keys=keys)
saved: dict[str, list[np.ndarray]] = {}
for batch in torch.utils.data.DataLoader(dataset, batch_size=5, shuffle=False):
    for name in keys:
        saved.setdefault(name, []).append(batch[name][:, 0].numpy())
    for group in ("obs", "next_obs"):
        for name in (*low, *rgb):
            saved.setdefault(f"{group}/{name}", []).append(batch[group][name][:, 0].numpy())
joined = {name: np.concatenate(parts) for name, parts in saved.items()}
env = files.get_env_metadata_from_dataset(path)["env_name"]
successes = len(SequenceDataset(path, (), (), filter_by_attribute="success"))
np.savez(out, env=np.array(env), successes=np.array(successes), **joined)
