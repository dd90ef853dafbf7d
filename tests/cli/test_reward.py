from __future__ import annotations

import re
from pathlib import Path

import pytest

from serl.cli import main as cli

from .conftest import Serl, refused


@pytest.mark.usefixtures("terminal")
def test_reward_model_is_collected_labelled_trained_audited_and_checked(
    serl: Serl, tmp_path: Path
) -> None:
    sizes = [
        f"--task_config.views.{v}.{s}=16" for v in ("front", "wrist") for s in ("width", "height")
    ]
    counts = ("--positives", 30, "--negatives", 40)
    code, text, _ = serl("reward", "collect", "pick_cube", "--out", "data", *counts, *sizes)
    assert code == cli.DONE
    assert re.search("labelled images .* 70/70", text)
    assert "30 positives and 40 negatives, of " in text
    assert "serl reward train data --out pick_cube.safetensors" in text
    assert "already holds episodes" in refused(
        serl, "reward", "collect", "pick_cube", "--out", "data"
    )

    for path in (tmp_path / "data").glob("*.mcap"):
        path.rename(tmp_path / path.name)
    line = refused(serl, "reward", "collect", "pick_cube", "--out", "data")
    assert "already holds episodes or labels" in line, "labels of other episodes would count"
    for path in tmp_path.glob("*.mcap"):
        path.rename(tmp_path / "data" / path.name)

    label = ("reward", "label", "data", "--episode", 0, "--label", 0)
    code, text, _ = serl(*label, "--steps", "0:2")
    assert code == cli.DONE
    assert text.startswith("3 steps are labelled 0; ")
    for words, part in (
        ((*label, "--steps", "9:x"), "--steps '9:x': expected a number, or FIRST:LAST"),
        ((*label, "--steps", "9:"), "--steps '9:': expected a number, or FIRST:LAST"),
        ((*label, "--steps", "0:5000"), "expected steps from 0 to "),
        (
            ("reward", "label", "data", "--episode", 999, "--label", 1, "--steps", 0),
            "no episode 999",
        ),
        (("reward", "train", "data", "--out", "m.pt"), "--out m.pt: must end in .safetensors"),
        (("reward", "train", ".", "--out", "m"), "expected a collection with views.json"),
        (("reward", "train", "data", "--out", "m", "--epochs", 0), "epochs: "),
        (("reward", "audit", "m", "data"), "reward model m: No such file"),
        (("reward", "train", "data", "absent", "--out", "m"), "absent: no such folder"),
    ):
        assert part in refused(serl, *words)

    quick = ("--epochs", 2, "--threads", 1)
    code, text, _ = serl("reward", "train", "data", "--out", "m.safetensors", *quick)
    assert code == cli.DONE
    assert re.search(r"epochs, loss \d\.\d{4} .* 2/2", text)
    assert "m.safetensors: sees front, wrist; success from a probability of " in text
    words = ("accuracy", "precision", "recall", "neither training nor calibration used")
    assert all(word in text for word in words)
    code, text, _ = serl("reward", "audit", "m.safetensors", "data", "--sheet", "worst.png")
    assert code == cli.DONE
    assert "truth: labels of steps by people or scripts, " in text
    assert "as a reward, which requires 4 of the last 5 images:" in text
    assert "where the tool is above x, y, z of (-1.0, -1.0, 0.15) m" in text
    assert "the worst mistakes of single images: worst.png" in text
    assert re.search(r"false \w+, .*: data --epoch 1 --episode \d+ --steps \d+\n", text)
    assert (tmp_path / "worst.png").read_bytes().startswith(b"\x89PNG")

    model = ("--reward.kind=classifier", "--reward.model=m.safetensors", "--observe=pixels")
    assert "trained on the view 'front'" in refused(serl, "train", "pick_cube", *model)
    line = refused(serl, "train", "drawer", *model)
    assert "trained for pick_cube, not for drawer; " in line
    assert "--reward.transfer true" in line
    line = refused(serl, "train", "drawer", *model, "--reward.transfer=true")
    assert "trained on the view 'front'" in line
    assert "reward model" in refused(
        serl, "train", "pick_cube", *model[:1], "--reward.model=absent"
    )
    assert "needs the file" in refused(serl, "train", "pick_cube", model[0])
    assert not (tmp_path / "runs").exists()
