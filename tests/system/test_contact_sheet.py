from __future__ import annotations

import numpy as np

from serl.system.video import contact_sheet


def test_views_lie_one_above_the_other_and_an_empty_sheet_says_so() -> None:
    images = {name: np.full((9, 8, 8, 3), 40 * (n + 1), np.uint8) for n, name in enumerate("ab")}
    sheet = contact_sheet(images, ["0.9  1:2"] * 9, "wrong")
    empty = contact_sheet({name: frames[:0] for name, frames in images.items()}, [], "wrong")
    assert sheet.dtype == np.uint8
    assert sheet.shape[1] == empty.shape[1]
    for level in (40, 80):
        assert (sheet == level).all(2).sum() == 9 * 96 * 96
        assert not (empty == level).all(2).any()
    top, below = ((sheet == level).all(2).nonzero()[0].min() for level in (40, 80))
    assert below == top + 96
