# Runs a policy of `serl export RUN --to onnx` without serl: `python run_onnx.py policy.onnx`.
import json
import sys

import numpy as np
import onnxruntime


class Policy:  # clear `seen`, the last images, at the start of each episode
    def __init__(self, path: str) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["serl"])
        self.seen: dict[str, list[np.ndarray]] = {}

    def __call__(self, given: dict[str, np.ndarray]) -> np.ndarray:
        """Return the action for state arrays and uint8 images (H, W, 3), by name."""
        state = np.concatenate([np.ravel(given[name]) for name in self.about["state"]])
        inputs = {"state": state[None].astype(np.float32)}
        for name in self.about["images"]:
            last = self.seen.get(name, [given[name]] * self.about["frames"])
            self.seen[name] = [*last[1:], given[name]]
            inputs[name] = np.concatenate(self.seen[name], axis=-1)[None]
        return self.session.run(["action"], inputs)[0][0]


if __name__ == "__main__":
    policy = Policy(sys.argv[1])
    shapes = {name: shape for name, (shape, _) in policy.about["state"].items()}
    zeros = {n: np.zeros(s, np.uint8) for n, s in (shapes | policy.about["images"]).items()}
    print(policy.about, "action for an observation of zeros:", policy(zeros), sep="\n")
