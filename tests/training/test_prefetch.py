from __future__ import annotations

import numpy as np
import pytest

from serl.errors import BadInput
from serl.training.replay import Prefetch, Replay
from serl.types import ActionSource

from ..support.plans import GAMMA, SPEC, fill, plan


def filled() -> Replay:
    return fill(Replay(SPEC, 50, GAMMA, crop_px=1), plan(*[ActionSource.POLICY] * 20))


def test_prefetched_batches_and_states_equal_those_without_thread() -> None:
    replay, batches = filled(), Prefetch(filled(), 16, 0.5)
    for begun in (True, False, True, True):
        assert np.array_equal(batches.state()["generator"], replay.sampler_state()["generator"])
        if begun:
            batches.begin()
            state = batches.state()["generator"]
            assert np.array_equal(state, replay.sampler_state()["generator"])
        drawn, expected = batches.take(), replay.sample(16, 0.5)
        assert np.array_equal(drawn.action, expected.action)
        assert np.array_equal(drawn.next_images["wrist"], expected.next_images["wrist"])


def test_prefetch_raises_errors_of_its_thread() -> None:
    batches = Prefetch(Replay(SPEC, 50, GAMMA), 16, 0.5)
    batches.begin()
    with pytest.raises(BadInput, match="empty"):
        batches.take()
