"""Runs a policy of `serl export RUN --to onnx`; needs numpy and onnxruntime, but not serl.

python run_onnx.py policy.onnx
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import numpy as np
import onnxruntime


class Policy:
    """A policy on one CPU thread; call `reset` at the start of each episode."""

    def __init__(self, path: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["serl"])
        self.reset()

    def reset(self) -> None:
        """Forget the images of the last episode."""
        self.seen: dict[str, list[np.ndarray]] = {}

    def __call__(
        self, state: Mapping[str, np.ndarray], images: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray:
        """Return the action for the named state arrays and uint8 images (H, W, 3)."""
        flat = np.concatenate([np.ravel(state[name]) for name in self.about["state"]])
        inputs = {"state": flat[None].astype(np.float32)}
        for name in self.about["images"]:
            image = (images or {})[name]
            last = self.seen.get(name, [image] * self.about["frames"])
            self.seen[name] = [*last[1:], image]
            inputs[name] = np.concatenate(self.seen[name], axis=-1)[None]
        return self.session.run(["action"], inputs)[0][0]


if __name__ == "__main__":
    policy = Policy(sys.argv[1])
    print(json.dumps(policy.about, indent=1))
    zeros = {name: np.zeros(shape) for name, (shape, _) in policy.about["state"].items()}
    dark = {name: np.zeros(shape, np.uint8) for name, shape in policy.about["images"].items()}
    print("action for an observation of zeros:", policy(zeros, dark))
