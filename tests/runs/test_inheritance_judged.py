"""What another run recorded enters with its rewards: who gave them has to be known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from serl.errors import SpecMismatch
from serl.runs.config import resolve
from serl.runs.inheritance import inherit

from .test_inheritance import SETTINGS, saved_run

POSE = (0.5, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0)
AT_GOAL = {"kind": "pose", "pose": POSE}
SEEN = {"kind": "classifier", "model": "m.safetensors", "sha256": "1" * 64}
VICE = {"kind": "vice"}
HUMAN = {"kind": "human"}


@pytest.mark.parametrize(
    ("there", "here", "data", "complaint"),
    [
        (VICE, {}, "steps", "judged by reward.kind vice, here it is task (init_from.data none"),
        (SEEN, {}, "steps", "judged by reward.kind classifier, here it is task"),
        (SEEN, HUMAN, "successes", "judged by reward.kind classifier, here it is human"),
        ({}, AT_GOAL, "steps", "judged by reward.kind task, here it is pose"),
        (SEEN, SEEN | {"sha256": "2" * 64}, "steps", "reward.model 111111111111, here it is 2222"),
        (SEEN, SEEN | {"hold": (2, 3)}, "steps", "reward.hold (4, 5), here it is (2, 3)"),
        (AT_GOAL, AT_GOAL | {"tolerance_rad": 0.2}, "successes", "reward.tolerance_rad 0.1"),
        (SEEN, SEEN | {"model": "elsewhere/n.safetensors"}, "steps", ""),
        (AT_GOAL, AT_GOAL, "steps", ""),
        (AT_GOAL, VICE, "steps", ""),
        (HUMAN, {}, "steps", ""),
        ({}, SEEN, "successes", ""),
        (VICE, {}, "none", ""),
    ],
)
def test_steps_that_were_judged_otherwise_do_not_enter(
    tmp_path: Path, there: dict[str, Any], here: dict[str, Any], data: str, complaint: str
) -> None:
    """Of a run that was judged by VICE they all have the reward 0, solved ones as well."""
    demonstrated = SETTINGS | {"demos": 1}
    before = saved_run(tmp_path, demonstrated | {"reward": there})
    origin = {"init_from": {"run": before.path, "data": data}, "reward": here}
    config = resolve(demonstrated, origin)
    if complaint:
        with pytest.raises(SpecMismatch, match=re.escape(complaint)) as caught:
            inherit(config)
        assert "\n" not in str(caught.value)
        return
    said = [line for line in inherit(config).lines if "keep their rewards" in line]
    otherwise = here != VICE and data != "none" and there.get("kind") != here.get("kind")
    assert len(said) == otherwise
