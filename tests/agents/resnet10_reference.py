"""The features that the trunk must have, by another way: JAX, in full float32.

    python tests/agents/resnet10_reference.py     # writes the file; needs jax and safetensors

The weights are a stand-in with SERL's names and shapes, out of `PCG64`. What is stored was made
with jax 0.10.2, and SERL's own module under Flax 0.7.0 gave the same within 1e-5.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

FEATURES = Path(__file__).with_name("data") / "resnet10_features.safetensors"
SIZES = {"as it is": (128, 128), "resized": (96, 240)}

Tree = dict[str, Any]


def stand_in(seed: int = 10) -> Tree:
    """A parameter tree as SERL's ResNetV1 has it, without the classifier on top."""
    numbers = Numbers(seed)

    def norm(channels: int) -> Tree:
        scale = 1 + numbers.spread(0.3, channels)
        return {"bias": numbers.spread(0.3, channels), "scale": scale}

    def kernel(size: int, inputs: int, outputs: int) -> Tree:
        # Small enough that what the norms add to the variance shows.
        deviation = 0.05 / (size * size * inputs) ** 0.5
        return {"kernel": numbers.spread(deviation, size, size, inputs, outputs)}

    tree = {"conv_init": kernel(7, 3, 64), "norm_init": norm(64)}
    for block, (inputs, outputs) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)]):
        layers = {
            "Conv_0": kernel(3, inputs, outputs),
            "MyGroupNorm_0": norm(outputs),
            "Conv_1": kernel(3, outputs, outputs),
            "MyGroupNorm_1": norm(outputs),
        }
        if block:
            layers |= {"conv_proj": kernel(1, inputs, outputs), "norm_proj": norm(outputs)}
        tree[f"ResNetBlock_{block}"] = layers
    return tree


def stand_in_image(height: int, width: int) -> np.ndarray[Any, Any]:
    """Blobs and noise, uint8 (1, H, W, 3)."""
    rows, columns = np.ogrid[:height, :width]
    waves = [
        np.sin(rows * (0.07 + 0.03 * c)) * np.cos(columns * (0.11 - 0.02 * c)) for c in range(3)
    ]
    noise = Numbers(height).spread(25, height, width, 3)
    image = np.clip(np.stack(waves, -1) * 90 + 120 + noise, 0, 255)
    return np.asarray(image[None], np.uint8)


class Numbers:
    """Random numbers that no version of numpy may change: its promise holds for raw bits alone."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def spread(self, deviation: float, *shape: int) -> np.ndarray[Any, Any]:
        """Uniform float32 around zero."""
        raw = self._bits.random_raw(int(np.prod(shape))) >> np.uint64(40)
        unit = raw.astype(np.float32) * np.float32(2**-24) - np.float32(0.5)
        return (unit * np.float32(deviation * 12**0.5)).reshape(shape)


def features(tree: Tree, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(1, H, W, 3) uint8 -> (1, 4, 4, 512), layer by layer as Flax has them."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    def conv(x: Any, layer: Tree, stride: int, padding: Any = "SAME") -> Any:
        return lax.conv_general_dilated(
            x,
            layer["kernel"],
            (stride, stride),
            padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision=lax.Precision.HIGHEST,
        )

    def norm(x: Any, layer: Tree) -> Any:
        groups = x.reshape(*x.shape[:3], 4, -1)
        mean = groups.mean((1, 2, 4), keepdims=True)
        variance = jnp.square(groups - mean).mean((1, 2, 4), keepdims=True)
        normal = ((groups - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape)
        return normal * layer["scale"] + layer["bias"]

    x = jnp.asarray(images, jnp.float32)
    if x.shape[1:3] != (128, 128):
        x = jax.image.resize(x, (1, 128, 128, 3), "bilinear")
    x = (x / 255 - jnp.array([0.485, 0.456, 0.406])) / jnp.array([0.229, 0.224, 0.225])
    x = norm(conv(x, tree["conv_init"], 2, [(3, 3), (3, 3)]), tree["norm_init"])
    x = lax.reduce_window(jnp.maximum(x, 0), -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for block in range(4):
        layers, stride = tree[f"ResNetBlock_{block}"], 2 if block else 1
        y = jnp.maximum(norm(conv(x, layers["Conv_0"], stride), layers["MyGroupNorm_0"]), 0)
        y = norm(conv(y, layers["Conv_1"], 1), layers["MyGroupNorm_1"])
        if block:
            x = norm(conv(x, layers["conv_proj"], stride), layers["norm_proj"])
        x = jnp.maximum(x + y, 0)
    return np.asarray(x)


def main() -> None:
    """Write the features of one image of each size."""
    from safetensors.numpy import save_file

    tree = stand_in()
    FEATURES.parent.mkdir(exist_ok=True)
    save_file(
        {name: features(tree, stand_in_image(*size)) for name, size in SIZES.items()}, FEATURES
    )


if __name__ == "__main__":
    main()
