"""Trained policies as ONNX files: from an observation to the mode, without serl or torch.

The graph is written operator by operator from the flat parameters, so that it needs no tracing, and
holds what a policy computes of one observation: normalisation, encoder, actor, choice of the
grippers. Stacking the last images (`agent.frames`) stays with the caller.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from serl.agent import Agent
from serl.agents.encoders import EPSILON, Encoder
from serl.agents.hybrid import WIDTH, HybridSAC
from serl.agents.networks import EnsembleMLP
from serl.agents.passes import LAYER_NORM_EPS
from serl.agents.resnet import IMAGE, Trunk
from serl.agents.sac import NORMALISED_RANGE, SAC
from serl.errors import BadInput
from serl.specs import Spec

_OPSET, _IR_VERSION = 18, 9
"""Read by ONNX Runtime 1.14 and later."""
METADATA = "serl"
"""Key of the policy's description in the file's metadata, as JSON."""


def export_policy(agent: Agent, spec: Spec, step: int) -> bytes:
    """Return the policy of an agent as an ONNX model.

    Inputs are `state` (B, D), float32, and each camera by its name, uint8 (B, H, W, 3 * frames);
    the output is `action` (B, A). `description` lists the metadata.

    Args:
        agent: SAC, BC or hybrid, with its weights.
        spec: spec of the policy's observations and actions.
        step: online steps that the policy was trained on.

    Raises:
        BadInput: the policy is of another algorithm.
    """
    if not isinstance(agent, SAC):
        raise BadInput(f"onnx: expected a policy of sac, hybrid or bc, got {type(agent).__name__}")
    graph = _Graph()
    cameras: dict[str, list[str | int]] = {
        name: ["batch", *image.shape[:2], 3 * agent.config.frames]
        for name, image in spec.observation.images.items()
    }
    seen = _add_encoder(graph, agent, list(cameras))
    actor = _add_perceptron(graph, agent.networks.actor, agent.actor.flat, seen, halved=True)
    action = graph.add("Tanh", actor)
    if isinstance(agent, HybridSAC):
        action = _add_grippers(graph, agent, seen, action)
    graph.add("Identity", action, output="action")
    inputs = [_value("state", TensorProto.FLOAT, ["batch", spec.observation.state_size])]
    inputs += [_value(name, TensorProto.UINT8, shape) for name, shape in cameras.items()]
    output = _value("action", TensorProto.FLOAT, ["batch", *spec.action.shape])
    made = helper.make_graph(graph.nodes, spec.task, inputs, [output], graph.constants)
    opsets = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(made, producer_name="serl", opset_imports=opsets)
    model.ir_version = _IR_VERSION
    described = description(spec, agent.config.frames, step)
    helper.set_model_props(model, {METADATA: json.dumps(described)})
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def description(spec: Spec, frames: int, step: int) -> Mapping[str, Any]:
    """Return the metadata of a file: task, steps, rate, and names, shapes and units of all values.

    Keys: `task`, `step`, `rate_hz`, `frames` (images of a camera that are stacked), `state` (shape
    and unit by name, in the order of the vector), `images` (shape by camera), `action` (names),
    `motion` (scale and frame of an action of 1).
    """
    observation = spec.observation
    return {
        "task": spec.task,
        "step": step,
        "rate_hz": spec.rate_hz,
        "frames": frames,
        "state": {name: [list(each.shape), each.unit] for name, each in observation.state.items()},
        "images": {name: list(each.shape) for name, each in observation.images.items()},
        "action": spec.action_names,
        "motion": spec.motion,
    }


class _Graph:
    """The nodes and constants of a graph that grows; outputs are numbered."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        """Add an array; return its name."""
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def add(self, operator: str, *inputs: str | Tensor | np.ndarray[Any, Any], **given: Any) -> str:
        """Add a node; return the name of its output. Inputs are names, or arrays to keep."""
        output: str = given.pop("output", f"value{len(self.nodes)}")
        names = [
            each
            if isinstance(each, str)
            else self.constant(each.numpy(force=True) if isinstance(each, Tensor) else each)
            for each in inputs
        ]
        self.nodes.append(helper.make_node(operator, names, [output], **given))
        return output


def _value(name: str, kind: int, shape: list[str | int]) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _add_encoder(graph: _Graph, agent: SAC, cameras: list[str]) -> str:
    """Add the input of actor and grasp critic; return its name.  # (B, Z)."""
    scaled = graph.add("Div", graph.add("Sub", "state", agent.mean), agent.std)
    low, high = (np.array(sign * NORMALISED_RANGE, np.float32) for sign in (-1, 1))
    state = graph.add("Clip", scaled, low, high)
    if not cameras:
        return state
    encoder = agent.networks.encoder
    parts = {name: part[0] for name, part in encoder.views(agent.encoder.flat.detach()).items()}
    if trunk := agent.trunk:
        features = [_add_trunk(graph, agent, trunk, parts, name) for name in cameras]
    else:
        features = [_add_camera(graph, encoder, parts, name) for name in cameras]
        if agent.config.cached_features:
            features = [_round(graph, each) for each in features]
    if encoder.state_size:
        features.append(_add_head(graph, parts, "state.head", state))
    return graph.add("Concat", *features, axis=-1)


def _add_camera(graph: _Graph, encoder: Encoder, parts: Mapping[str, Tensor], name: str) -> str:
    """Add a camera's features, as `Encoder.camera_features`; return their name.  # (B, latent)."""
    grey = graph.add("Cast", name, to=TensorProto.FLOAT)
    x = graph.add("Transpose", grey, perm=[0, 3, 1, 2])
    x = graph.add("Sub", x, np.array(127.5, np.float32))
    x = graph.add("Div", x, np.array(255.0, np.float32))
    height, width = encoder.cameras[name]
    last = len(encoder.channels) - 1
    for layer in range(last + 1):
        stride = 2 if layer < last else 1
        weight, bias = (parts[f"{name}.{layer}.{part}"] for part in ("weight", "bias"))
        x = graph.add("Conv", x, weight, bias, strides=[stride] * 2, pads=[1] * 4)
        height, width = (math.ceil(size / stride) for size in (height, width))
        if layer < last:
            x = graph.add("Relu", x)
    channels = encoder.channels[-1]
    share = graph.add("Softmax", graph.add("Reshape", x, np.array([0, 0, -1])), axis=-1)
    share = graph.add("Reshape", share, np.array([0, channels, height, width]))
    places = []
    for across, size in ((2, width), (3, height)):
        sums = graph.add("ReduceSum", share, np.array([across]), keepdims=0)
        weighted = graph.add("Mul", sums, np.linspace(-1.0, 1.0, size, dtype=np.float32))
        places.append(graph.add("ReduceSum", weighted, np.array([2]), keepdims=0))
    return _add_head(graph, parts, f"{name}.head", graph.add("Concat", *places, axis=-1))


def _round(graph: _Graph, x: str) -> str:
    """Round features to float16, in which replay stores them; return the name."""
    half = graph.add("Cast", x, to=TensorProto.FLOAT16)
    return graph.add("Cast", half, to=TensorProto.FLOAT)


def _add_trunk(
    graph: _Graph, agent: SAC, trunk: Trunk, parts: Mapping[str, Tensor], name: str
) -> str:
    """Add a camera's features by the frozen ResNet-10, in float32; return the name.

    A policy that computes the trunk in bfloat16 differs from this by its rounding.
    """
    pixels = graph.add("Cast", name, to=TensorProto.FLOAT)
    pixels = graph.add("Transpose", pixels, perm=[0, 3, 1, 2])
    grids = []
    for frame in range(agent.config.frames):
        x = graph.add("Slice", pixels, *(np.array([k]) for k in (3 * frame, 3 * frame + 3, 1)))
        for side, size in enumerate(agent.networks.encoder.cameras[name]):
            if size != IMAGE:  # the resizing is linear: a matrix for each side
                matrix = _resizing(size)
                x = graph.add("MatMul", *((x, matrix.T) if side else (matrix, x)))
        x = graph.add("Add", graph.add("Mul", x, trunk.scale), trunk.shift)
        x = graph.add("Conv", x, trunk.stem.weight.float(), strides=[2, 2], pads=[3] * 4)
        x = _add_group_norm(graph, trunk.stem_norm, x, IMAGE // 2)
        x = graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
        x, size = graph.add("Relu", x), IMAGE // 4
        for block in trunk.blocks:
            x, size = _add_block(graph, block, x, size)
        grids.append(x)
    seen = graph.add("Concat", *grids, axis=1) if len(grids) > 1 else grids[0]
    if agent.config.cached_features:
        seen = _round(graph, seen)
    weights = parts[f"{name}.places.weight"]
    weighted = graph.add("Einsum", seen, weights, equation="bchw,hwcf->bcf")
    return _add_head(graph, parts, f"{name}.head", graph.add("Flatten", weighted))


def _resizing(size: int) -> np.ndarray[Any, Any]:
    """Return the matrix that resizes one side of an image to that of the trunk's input."""
    unit = torch.eye(size)[None, None]
    resized = functional.interpolate(unit, (IMAGE, size), mode="bilinear", antialias=True)
    matrix: np.ndarray[Any, Any] = resized[0, 0].numpy()
    return matrix


def _add_block(graph: _Graph, block: Any, x: str, size: int) -> tuple[str, int]:
    """Add a residual block on a square image of a size; return its output's name and size."""
    stride = 2 if block.halves else 1
    after, pads = size // stride, [0, 0, 1, 1] if block.halves else [1] * 4
    y = graph.add("Conv", x, block.conv0.weight.float(), strides=[stride] * 2, pads=pads)
    y = graph.add("Relu", _add_group_norm(graph, block.norm0, y, after))
    y = graph.add("Conv", y, block.conv1.weight.float(), pads=[1] * 4)
    y = _add_group_norm(graph, block.norm1, y, after)
    if block.halves:
        x = graph.add("Conv", x, block.shortcut.weight.float(), strides=[2, 2])
        x = _add_group_norm(graph, block.shortcut_norm, x, after)
    return graph.add("Relu", graph.add("Add", y, x)), after


def _add_group_norm(graph: _Graph, norm: nn.GroupNorm, x: str, size: int) -> str:
    """Add a group norm of a square image; return the name of its output."""
    groups, channels = norm.num_groups, norm.num_channels
    ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    y = graph.add("Reshape", x, np.array([0, groups, -1]))
    y = graph.add("InstanceNormalization", y, ones, zeros, epsilon=norm.eps)
    y = graph.add("Reshape", y, np.array([0, channels, size, size]))
    weight, bias = (each.float().reshape(-1, 1, 1) for each in (norm.weight, norm.bias))
    return graph.add("Add", graph.add("Mul", y, weight), bias)


def _add_head(graph: _Graph, parts: Mapping[str, Tensor], name: str, x: str) -> str:
    """Add linear, LayerNorm and tanh; return the name of the output."""
    weight, scale, shift = (
        parts[f"{name}.{part}"] for part in ("weight", "norm.scale", "norm.shift")
    )
    y = graph.add("MatMul", x, weight)
    y = graph.add("LayerNormalization", y, scale, shift, axis=-1, epsilon=EPSILON)
    return graph.add("Tanh", y)


def _add_perceptron(
    graph: _Graph, network: EnsembleMLP, flat: Tensor, x: str, halved: bool = False
) -> str:
    """Add the first member of an ensemble; return the name of its output.

    Args:
        graph: graph to add to.
        network: layers.
        flat: parameters, one row per member.  # (E, P)
        x: name of the input.
        halved: keep the first half of the outputs alone: means without log standard deviations.
    """
    parts = {name: part[0] for name, part in network.views(flat.detach()).items()}
    last = len(network.sizes) - 2
    kept = network.sizes[-1] // 2 if halved else network.sizes[-1]
    for layer in range(last):
        x = graph.add("MatMul", x, parts[f"{layer}.weight"])
        if f"{layer}.bias" in parts:
            x = graph.add("Add", x, parts[f"{layer}.bias"])
        else:
            scale, shift = (parts[f"{layer}.norm.{part}"] for part in ("scale", "shift"))
            given = {"axis": -1, "epsilon": LAYER_NORM_EPS}
            x = graph.add("LayerNormalization", x, scale, shift, **given)
        x = graph.add("Relu" if network.activation == "relu" else "Tanh", x)
    x = graph.add("MatMul", x, parts[f"{last}.weight"][:, :kept])
    return graph.add("Add", x, parts[f"{last}.bias"][:kept])


def _add_grippers(graph: _Graph, agent: HybridSAC, seen: str, arm: str) -> str:
    """Add the grippers' best choices to the arm's entries; return the name of whole actions."""
    grippers = agent.grippers
    values = _add_perceptron(graph, agent.grasp_network, agent.grasp.flat, seen)
    best = graph.add("ArgMax", values, axis=-1, keepdims=0)
    digits = [
        [choice // WIDTH**number % WIDTH - 1.0 for number in range(len(grippers.places))]
        for choice in range(grippers.choices)
    ]
    grips = graph.add("Gather", np.array(digits, np.float32), best, axis=0)
    whole = graph.add("Concat", arm, grips, axis=-1)
    places = np.argsort([*grippers.arm, *grippers.places])
    return graph.add("Gather", whole, places, axis=1)
