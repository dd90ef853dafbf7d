"""Replay of encoded features, compared with replay of the same images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from serl.training.frames import FeatureStore, FrameEncoder, feature_bytes
from serl.training.replay import Replay
from serl.types import ActionSource, Batch, Features, Image

from ..support.plans import GAMMA, SPEC, Plan, fill, plan

POLICY, HUMAN = ActionSource.POLICY, ActionSource.HUMAN


class Halves:
    """Encoder that returns half of each frame's first pixel and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.encoder = FrameEncoder((3,), self)

    def __call__(self, images: Mapping[str, Image]) -> dict[str, Features]:
        self.calls += 1
        return {name: np.float16(0.5) * image[0, 0] for name, image in images.items()}


def plans(episodes: int) -> list[Plan]:
    endings = ("terminated", "truncated", "broken off")
    return [
        plan(POLICY, HUMAN, POLICY, ending=endings[n % 3], first=10 * n, number=n)
        for n in range(episodes)
    ]


def check(features: Batch, images: Batch) -> None:
    assert np.array_equal(features.action, images.action)
    for mine, theirs in (
        (features.images, images.images),
        (features.next_images, images.next_images),
    ):
        assert mine["wrist"].dtype == np.float16
        assert np.array_equal(mine["wrist"], np.float16(0.5) * theirs["wrist"][:, 0, 0])


@pytest.mark.parametrize("n_step", [1, 3])
def test_cached_features_match_frames_at_episode_ends_takeovers_and_wrap_around(
    n_step: int,
) -> None:
    halves = Halves()
    encoded = Replay(SPEC, 17, GAMMA, n_step, encoder=halves.encoder, crop_px=2)
    plain = Replay(SPEC, 17, GAMMA, n_step)
    for each in plans(25):
        for replay in (encoded, plain):
            fill(replay, each)
        check(encoded.sample(64), plain.sample(64))


def test_each_frame_is_encoded_once_on_first_sample() -> None:
    halves = Halves()
    replay = fill(Replay(SPEC, 50, GAMMA, encoder=halves.encoder), plan(*[POLICY] * 9))
    assert halves.calls == 0
    for _ in range(3):
        replay.sample(16)
    assert halves.calls == 10
    fill(replay, plan(POLICY, number=1, first=20)).sample(16)
    assert halves.calls == 12


def test_replay_rebuilt_from_records_gives_equal_batches() -> None:
    run = Replay(SPEC, 20, GAMMA, encoder=Halves().encoder, seed=1)
    for each in plans(9):
        fill(run, each)
        if len(run):
            run.sample(5)
    rebuilt = Replay(SPEC, 20, GAMMA, encoder=Halves().encoder, seed=2)
    for each in plans(9):
        fill(rebuilt, each)
    rebuilt.load_sampler_state(run.sampler_state())
    left, right = run.sample(40), rebuilt.sample(40)
    assert np.array_equal(left.images["wrist"], right.images["wrist"])
    assert np.array_equal(left.next_images["wrist"], right.next_images["wrist"])


def test_feature_store_bounds_images_waiting_for_encoding() -> None:
    halves = Halves()
    store = FeatureStore(["wrist"], 1200, halves.encoder)
    for slot in range(1200):
        store.put(slot, {"wrist": np.full((2, 2, 3), slot % 250, np.uint8)})
    assert halves.calls >= 700
    taken = store.take(np.array([[3], [1199]]), np.random.default_rng(0))["wrist"]
    assert taken[:, 0].tolist() == [1.5, 0.5 * (1199 % 250)]


def test_feature_bytes_counts_all_cameras() -> None:
    assert feature_bytes(["a", "b"], FrameEncoder((4, 4, 512), Halves())) == 2 << 14
