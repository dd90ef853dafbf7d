"""Teaches an image encoder where things are, on pictures of a task that nobody has to label.

In simulation the truth says where each body is, so an encoder can learn to tell it from images
before the first episode of a training; what it learned is a file that agents start from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError
from torch import Tensor

from serl.agents.config import PretrainingConfig
from serl.agents.encoders import Encoder
from serl.agents.networks import EnsembleMLP, Group, descend
from serl.agents.weights import said_by, to_arrays
from serl.assignment import check_one_tool
from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.evaluation import Purpose, start_seed
from serl.fields import parse_object, short
from serl.files import read_bounded, write_atomic
from serl.frames import brightened, shifted
from serl.robot import SimulatedRobot
from serl.task import SimulatedTask
from serl.types import Array, Image

FORMAT = "serl encoder 1"
MAX_BYTES = 256 << 20
_HELD_OUT = 0.1
_UNIT_M = 0.1  # targets are about as large as 1


class Pretrained(NamedTuple):
    """An encoder, and how far off it is on pictures that it never saw.

    Attributes:
        arrays: its parameters by name, of each camera.
        error_m: median distance between where bodies are and where it sees them.
        sizes: height and width of each camera's images.
    """

    arrays: Mapping[str, np.ndarray[Any, Any]]
    error_m: float
    sizes: Mapping[str, tuple[int, int]]


def sights(
    robot: SimulatedRobot, task: SimulatedTask, config: PretrainingConfig
) -> tuple[dict[str, Image], Array]:
    """Pictures along a disturbed expert's ways, and where bodies are from the tool.  # (N, 3 T).

    Raises:
        BadInput: the task has no cameras, or nothing to look for.
    """
    if not task.config.policy_views or not task.scene.tracked:
        raise BadInput(f"{task.name}: needs cameras (--observe pixels) and bodies to look for")
    check_one_tool(task)
    rng = np.random.default_rng(config.seed)
    images: dict[str, list[Image]] = {name: [] for name in task.config.policy_views}
    targets: list[Array] = []
    episode = 0
    while len(targets) < config.samples:
        task.begin(robot.reset(start_seed(Purpose.REWARD, config.seed, "pretraining", episode)))
        expert = task.expert(robot.truth, episode)
        for _ in range(int(rng.integers(5, task.config.max_steps))):
            reading, truth = robot.observe(), robot.truth()
            for name, seen in images.items():
                seen.append(reading.images[name])
            bodies = [truth[f"{name}_pose"][:3] for name in task.scene.tracked]
            targets.append(np.concatenate([body - truth["tcp_pose"][:3] for body in bodies]))
            action = expert(task.observation(reading))
            disturbed = action + rng.normal(0.0, config.noise, action.shape)
            robot.act(disturbed.clip(-1.0, 1.0).astype(np.float32))
            robot.advance(1.0 / task.config.rate_hz)
        episode += 1
    count = config.samples
    pictures = {name: np.stack(seen[:count]) for name, seen in images.items()}
    return pictures, np.stack(targets[:count]).astype(np.float32)


def pretrain(
    images: Mapping[str, Image],
    targets: Array,
    config: PretrainingConfig,
    progress: Callable[[int, float], None] = lambda epoch, loss: None,
) -> Pretrained:
    """Train an encoder, with a head that is thrown away, to tell the targets from the images.

    The last tenth is held out. Equal arguments give equal parameters.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    cameras = {name: (frames.shape[1], frames.shape[2]) for name, frames in images.items()}
    encoder = Encoder(cameras, 0, config.channels, config.latent, 0)
    head = EnsembleMLP(1, (encoder.size, 128, targets.shape[1]), layer_norm=True)
    generator = torch.Generator().manual_seed(config.seed)
    groups = [Group(network.init(generator), config.learning_rate) for network in (encoder, head)]
    rng = np.random.default_rng(config.seed)
    training = len(targets) - max(1, round(_HELD_OUT * len(targets)))
    scaled = torch.from_numpy(targets / _UNIT_M)

    def told(rows: np.ndarray[Any, np.dtype[np.int64]], crop_px: int, brightness: float) -> Tensor:
        seen = {
            name: torch.from_numpy(brightened(shifted(frames, rows, crop_px, rng), brightness, rng))
            for name, frames in images.items()
        }
        return head(groups[1].flat, encoder(groups[0].flat, torch.empty(0), seen))[0]

    for epoch in range(config.epochs):
        for group in groups:
            done = epoch / config.epochs
            group.learning_rate = 0.5 * config.learning_rate * (1.0 + math.cos(math.pi * done))
        order = rng.permutation(training)
        for start in range(0, training, config.batch_size):
            rows = order[start : start + config.batch_size]
            loss = (told(rows, config.crop_px, config.brightness) - scaled[rows]).square().mean()
            descend(loss, *groups)
        progress(epoch + 1, loss.item())
    with torch.no_grad():
        off = told(np.arange(training, len(targets)), 0, 0.0) - scaled[training:]
    error_m = float(off.view(len(off), -1, 3).norm(dim=-1).median()) * _UNIT_M
    views = encoder.views(groups[0].flat.detach())
    arrays = to_arrays({name: part[0] for name, part in views.items()})
    return Pretrained(arrays, error_m, cameras)


def save_encoder(path: Path, pretrained: Pretrained, said: Mapping[str, Any]) -> None:
    """Write one safetensors file; `said` is what is to be known of it.

    Raises:
        BadInput: the disk refused.
    """
    metadata = {"format": FORMAT, "card": json.dumps({**said, "sizes": pretrained.sizes})}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, safetensors.numpy.save(dict(pretrained.arrays), metadata))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def load_encoder(path: Path, encoder: Encoder, flat: Tensor) -> None:
    """Put the parameters of a file into those of an agent's encoder, all cameras or none.

    Raises:
        BadInput: there is no such file.
        CorruptData: it is damaged, or none of ours.
        SpecMismatch: it is for other cameras or of another shape.
    """
    try:
        data = read_bounded(path, MAX_BYTES)
        card = parse_object(said_by(data, FORMAT)["card"].encode(), "card")
        arrays = safetensors.numpy.load(data)
    except OSError as error:
        raise BadInput(f"encoder {path}: {error.strerror}") from error
    except (CorruptData, SafetensorError, ValueError, KeyError) as error:
        raise CorruptData(f"encoder {path}: {' '.join(str(error).split())[:160]}") from error
    sizes = {name: list(size) for name, size in encoder.cameras.items()}
    if card.get("sizes") != sizes:
        raise SpecMismatch(f"encoder {path}: for images {short(card.get('sizes'))}, here {sizes}")
    mine = {
        name: part[0] for name, part in encoder.views(flat).items() if not name.startswith("state.")
    }
    if mine.keys() != arrays.keys():
        raise SpecMismatch(
            f"encoder {path}: is for the cameras {_cameras(arrays)}, needed {_cameras(mine)}, "
            "or has other layers"
        )
    for name, part in mine.items():
        array = arrays[name]
        if array.shape != part.shape or array.dtype != np.float32 or not np.isfinite(array).all():
            found = f"{array.dtype}{list(array.shape)}"
            raise SpecMismatch(
                f"encoder {path}: {name}: expected finite float32{list(part.shape)}, got {found}"
            )
    with torch.no_grad():
        for name, part in mine.items():
            part.copy_(torch.from_numpy(arrays[name]))


def _cameras(arrays: Mapping[str, Any]) -> list[str]:
    return sorted({name.split(".")[0] for name in arrays})
