"""Pretraining of an image encoder on simulated tasks, without manual labels.

In simulation the state behind each image is known, so an encoder can learn to predict it from
images before the first episode of a training. The result is a file from which agents start. It is
privileged: no real camera comes with that state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError
from torch import Tensor

from serl.agents.config import PretrainingConfig
from serl.agents.encoders import Encoder
from serl.agents.networks import EnsembleMLP, Group, cosine, descend
from serl.agents.trunk_weights import digest_of_arrays
from serl.agents.weights import metadata_of, to_arrays
from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.robot import SimulatedRobot
from serl.system.files import read_bounded, write_atomic
from serl.system.json_fields import parse_object, short
from serl.task import SimulatedTask
from serl.training.evaluation import Purpose, start_seed
from serl.training.frames import random_brightness, random_shift
from serl.types import Array, Image, Observation

FORMAT = "serl encoder 1"
MAX_BYTES = 256 << 20
_HELD_OUT = 0.1
_KEPT_UP = 0.8  # share of the steps that keep the disturbance of the step before
_NEAR = 0.1  # share of a number's spread within which the prediction has to be most exact
_STILL = 1e-3  # spread, relative to the mean, below which a number counts as constant


class TaskImages(NamedTuple):
    """Images of a task, with the part of its state that only the images show.

    Attributes:
        images: images by camera.  # (N, H, W, 3) uint8
        targets: state entries by name, as in the task's state spec.  # (N, D) each
    """

    images: Mapping[str, Image]
    targets: Mapping[str, Array]


class PretrainedEncoder(NamedTuple):
    """A pretrained encoder, with its errors on held-out images.

    Attributes:
        arrays: parameters by name, of each camera.
        errors: median distance of prediction and truth, by task and target.
        sizes: height and width of each camera's images.
    """

    arrays: Mapping[str, np.ndarray[Any, Any]]
    errors: Mapping[str, Mapping[str, float]]
    sizes: Mapping[str, tuple[int, int]]


def collect_images(
    robot: SimulatedRobot,
    task: SimulatedTask,
    from_state: SimulatedTask,
    config: PretrainingConfig,
    on_image: Callable[[], None] = lambda: None,
) -> TaskImages:
    """Collect images along an expert's trajectories, each with its own level of disturbance.

    Args:
        robot: the simulation, in the task's scene.
        task: the task, observed through cameras.
        from_state: the same task, observed from state.
        config: number of images, and disturbance of the expert.
        on_image: called after each image.

    Raises:
        BadInput: the task has no cameras, or its state has no entry that only cameras show.
    """
    names = from_state.observation_spec.state.keys() - task.observation_spec.state.keys()
    if not task.config.policy_views or not names:
        raise BadInput(
            f"{task.name}: needs cameras (--observe pixels), and a state entry that only they show"
        )
    images: dict[str, list[Image]] = {name: [] for name in task.config.policy_views}
    targets: list[dict[str, Array]] = []
    before: dict[str, Array] = {}
    for begins, reading in _expert_readings(robot, task, config):
        if begins:
            from_state.begin(_with_truth(reading, robot))
            before = {}
        state = from_state.observation(_with_truth(reading, robot)).state
        now = {name: state[name] for name in sorted(names)}
        stamp_s = np.mean([reading.stamps[name] for name in images])
        late = float(reading.stamps["robot"] - stamp_s) * task.config.rate_hz
        if late < 1.0:  # delay of a randomised camera; beyond it an image was lost and repeats
            for name, seen in images.items():
                seen.append(reading.images[name])
            targets.append({name: _between(now[name], before.get(name), late) for name in now})
            on_image()
        before = now
        if len(targets) == config.samples:
            break
    return TaskImages(
        {name: np.stack(seen) for name, seen in images.items()},
        {name: np.stack([each[name] for each in targets]) for name in targets[0]},
    )


def _expert_readings(
    robot: SimulatedRobot, task: SimulatedTask, config: PretrainingConfig
) -> Iterator[tuple[bool, Observation]]:
    """Yield endlessly whether a trajectory of a disturbed expert starts, and its next reading."""
    rng = np.random.default_rng(config.seed)
    for episode in count():
        task.begin(robot.reset(start_seed(Purpose.REWARD, config.seed, "pretraining", episode)))
        expert, most = task.expert(robot.truth, episode), rng.uniform(0.0, config.noise)
        for step in range(task.config.max_steps):
            reading = robot.observe()
            yield step == 0, reading
            if task.is_success(robot.truth()):
                break
            action = expert(task.observation(reading))
            if step == 0 or rng.random() > _KEPT_UP:
                disturbance = rng.normal(0.0, most, action.shape)
            robot.act((action + disturbance).clip(-1.0, 1.0).astype(np.float32))
            robot.advance(1.0 / task.config.rate_hz)


def _with_truth(reading: Observation, robot: SimulatedRobot) -> Observation:
    """Return a reading with the true state of the scene added."""
    return Observation({**reading.state, **robot.truth()}, reading.images, reading.stamps)


def _between(now: Array, before: Array | None, late: float) -> Array:
    """Interpolate a value to a fraction of a step earlier; at the start return it unchanged."""
    if before is None:
        return now
    was: Array = now + np.float32(late) * (before - now)
    return was


def pretrain(
    seen: Mapping[str, TaskImages],
    config: PretrainingConfig,
    progress: Callable[[int, float], None] = lambda epoch, loss: None,
) -> PretrainedEncoder:
    """Train an encoder to predict the targets from the images, of several tasks at once.

    Targets near zero, for example the distance of a tool near its goal, count most (`_Objective`).
    A camera of two tasks is one camera. Each task has a head, which is discarded afterwards. The
    last tenth of each task's images is held out. Equal arguments give equal parameters.

    Args:
        seen: images by task name, the same number for each task.
        config: hyper-parameters of the training.
        progress: called with the number of each epoch and its last loss.

    Raises:
        BadInput: two tasks show the same camera at different sizes.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    encoder = Encoder(_cameras_of(seen), 0, config.channels, config.latent, 0)
    objectives = [_Objective(encoder, each, config) for each in seen.values()]
    generator = torch.Generator().manual_seed(config.seed)
    encoder_group = Group(encoder.init(generator), config.learning_rate)
    heads = [
        Group(objective.head.init(generator), config.learning_rate) for objective in objectives
    ]
    groups = (encoder_group, *heads)
    rng = np.random.default_rng(config.seed)
    training = objectives[0].training
    for epoch in range(config.epochs):
        for group in groups:
            group.learning_rate = config.learning_rate * cosine(epoch / config.epochs)
        order = rng.permutation(training)
        for start in range(0, training, config.batch_size):
            rows = order[start : start + config.batch_size]
            losses = [
                objective.residuals(encoder_group.flat, head.flat, rows, rng).square().mean()
                for objective, head in zip(objectives, heads, strict=True)
            ]
            loss = torch.stack(losses).mean()
            descend(loss, *groups)
        progress(epoch + 1, loss.item())
    errors = {
        name: objective.errors(encoder_group.flat, head.flat)
        for name, objective, head in zip(seen, objectives, heads, strict=True)
    }
    views = encoder.views(encoder_group.flat.detach())
    arrays = to_arrays({name: part[0] for name, part in views.items()})
    return PretrainedEncoder(arrays, errors, encoder.cameras)


class _Objective:
    """Training objective of an encoder on one task.

    A number x with a standard deviation s is learned as arsinh(10 x / s): near zero that is linear,
    and beyond a tenth of the spread logarithmic. An error therefore counts relative to the distance
    from zero, as it does for a policy: half a millimetre does not matter 3 cm from the goal.
    """

    def __init__(self, encoder: Encoder, seen: TaskImages, config: PretrainingConfig) -> None:
        self._encoder, self._images, self._config = encoder, seen.images, config
        self._widths = {name: target.shape[1] for name, target in seen.targets.items()}
        self._targets = np.concatenate([*seen.targets.values()], axis=1)
        pictures, size = self._targets.shape
        spread, mean = self._targets.std(0), self._targets.mean(0)
        moves = spread > _STILL * (np.abs(mean) + _STILL)  # otherwise constant up to rounding
        self._near = np.where(moves, _NEAR * spread, 1.0).astype(np.float32)
        self._scaled = torch.from_numpy(np.arcsinh(self._targets / self._near))
        self.head = EnsembleMLP(1, (config.latent * len(seen.images), 128, size), layer_norm=True)
        self.training = pictures - max(1, round(_HELD_OUT * pictures))

    def residuals(
        self,
        encoder: Tensor,
        head: Tensor,
        rows: np.ndarray[Any, np.dtype[np.int64]],
        rng: np.random.Generator | None = None,
    ) -> Tensor:
        """Return prediction minus target for the images in `rows`, augmented if `rng` is given."""
        crop_px, share = (self._config.crop_px, self._config.brightness) if rng else (0, 0.0)
        rng = rng or np.random.default_rng(0)
        images = {
            name: torch.from_numpy(
                random_brightness(random_shift(frames, rows, crop_px, rng), share, rng)
            )
            for name, frames in self._images.items()
        }
        predicted: Tensor = self.head(head, self._encoder(encoder, torch.empty(0), images))[0]
        return predicted - self._scaled[rows]

    @torch.no_grad()
    def errors(self, encoder: Tensor, head: Tensor) -> dict[str, float]:
        """Return the median distance of prediction and truth on the held-out images."""
        rows = np.arange(self.training, len(self._scaled))
        predicted = (self.residuals(encoder, head, rows) + self._scaled[rows]).numpy()
        off = self._near * np.sinh(predicted) - self._targets[rows]
        ends = np.cumsum([*self._widths.values()])[:-1]
        parts = zip(self._widths, np.split(off, ends, axis=1), strict=True)
        return {name: float(np.median(np.linalg.norm(part, axis=1))) for name, part in parts}


def _cameras_of(seen: Mapping[str, TaskImages]) -> dict[str, tuple[int, int]]:
    """Return height and width of each camera; raises `BadInput` where tasks disagree."""
    cameras: dict[str, tuple[int, int]] = {}
    for task, each in seen.items():
        for name, frames in each.images.items():
            _, height, width, _ = frames.shape
            if cameras.setdefault(name, (height, width)) != (height, width):
                raise BadInput(
                    f"{task}: camera {name}: {height} x {width} pixels, "
                    f"of another task {cameras[name][0]} x {cameras[name][1]}"
                )
    return cameras


def save_encoder(path: Path, pretrained: PretrainedEncoder, details: Mapping[str, Any]) -> None:
    """Write an encoder to a safetensors file; `details` are added to its card.

    Raises:
        BadInput: writing failed.
    """
    card = {**details, "errors": pretrained.errors, "sizes": pretrained.sizes}
    metadata = {
        "format": FORMAT,
        "card": json.dumps(card),
        "sha256": digest_of_arrays(pretrained.arrays),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, safetensors.numpy.save(dict(pretrained.arrays), metadata))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def load_encoder(path: Path, encoder: Encoder, flat: Tensor) -> None:
    """Copy the parameters in a file into an agent's encoder, for all cameras or none.

    The file may contain more cameras.

    Raises:
        BadInput: the file does not exist.
        CorruptData: the file is damaged, or not made by serl.
        SpecMismatch: the file is for other cameras or of another shape.
    """
    try:
        data = read_bounded(path, MAX_BYTES)
        metadata = metadata_of(data, FORMAT)
        card = parse_object(metadata["card"].encode(), "card")
        arrays = safetensors.numpy.load(data)
        if metadata.get("sha256", digest := digest_of_arrays(arrays)) != digest:
            raise CorruptData("the sha256 does not match")
    except OSError as error:
        raise BadInput(f"encoder {path}: {error.strerror}") from error
    except (CorruptData, SafetensorError, ValueError, KeyError) as error:
        raise CorruptData(f"encoder {path}: {' '.join(str(error).split())[:160]}") from error
    sizes = {name: list(size) for name, size in encoder.cameras.items()}
    found = card.get("sizes")
    if not (isinstance(found, dict) and found.items() >= sizes.items()):
        raise SpecMismatch(f"encoder {path}: for images {short(found)}, here {sizes}")
    mine = {
        name: part[0] for name, part in encoder.views(flat).items() if not name.startswith("state.")
    }
    theirs = {name for name in arrays if name.split(".")[0] in encoder.cameras}
    if mine.keys() != theirs:
        raise SpecMismatch(
            f"encoder {path}: is for the cameras {_cameras(arrays)}, needed {_cameras(mine)}, "
            "or has other layers"
        )
    for name, part in mine.items():
        array = arrays[name]
        if array.shape != part.shape or array.dtype != np.float32 or not np.isfinite(array).all():
            got = f"{array.dtype}{list(array.shape)}"
            raise SpecMismatch(
                f"encoder {path}: {name}: expected finite float32{list(part.shape)}, got {got}"
            )
    with torch.no_grad():
        for name, part in mine.items():
            part.copy_(torch.from_numpy(arrays[name]))


def _cameras(arrays: Mapping[str, Any]) -> list[str]:
    return sorted({name.split(".")[0] for name in arrays})
