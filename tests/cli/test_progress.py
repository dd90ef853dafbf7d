"""`serl reward progress`: training, refusals and use of a progress model."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from serl.cli import main as cli
from serl.cli.record import persons_folder
from serl.runs.config import parse_overrides
from serl.runs.settings import run_settings

from .conftest import Serl, refused

PAGE = (Path(__file__).parents[2] / "docs/howto/progress.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("terminal")
def test_progress_model_is_trained_from_demonstrations_and_used_as_reward(serl: Serl) -> None:
    record, train, use = (
        line.replace("pick_cube", "reach").split()[1:]
        for line in re.findall(r"^serl .*(?:demos$|safetensors$)", PAGE, re.MULTILINE)[:3]
    )
    assert (train[:2], use[0]) == (["reward", "progress"], "train")
    assert serl(*["6" if word == "20" else word for word in record])[0] == cli.DONE
    quick = ("--epochs", 2, "--threads", 1)
    code, text, errors = serl(*train, *quick)
    assert (code, errors) == (cli.DONE, "")
    assert re.search(r"epochs, loss \d\.\d{4} .* 2/2", text)
    assert re.search(
        r"^mean error on 1 of 6 demonstrations, .*: \d\.\d\d s \(the best c", text, re.M
    )
    assert f"next: serl {' '.join(use)}" in text
    shutil.copytree("demos", "more")
    several = ("demos", "more", "--out", "both.safetensors", "--task_config.time_limit_s", "8")
    code, text, errors = serl("reward", "progress", "reach", *several, *quick)
    assert (code, errors) == (cli.DONE, "")
    given = parse_overrides(shlex.split(text.partition("next: ")[2])[3:])
    assert given["demo_paths"] == ["demos", "more"]
    assert given["task_config"] == {"time_limit_s": 8}
    for words, part in (
        (
            ["reward", "progress", "reach", "absent", "--out", "m.safetensors"],
            "absent: no such fol",
        ),
        (["reward", "progress", "reach", "demos", "--out", "m.pt"], "must end in .safetensors"),
        ([*train, "--epochs", "0"], "epochs: "),
        ([*train, "--encoder", "resnet10"], "these observations have no images"),
        (
            ["reward", "progress", "pick_cube", "demos", "--out", "m.safetensors"],
            "demonstrates some",
        ),
        (["train", "pick_cube", *use[4:]], "trained for reach, not for pick_cube"),
        (["train", "reach", "--reward.kind", "progress"], "expected either topic, or progress.mod"),
    ):
        assert part in refused(serl, *words), words
    assert not Path("runs").exists()


@pytest.mark.parametrize("given", [(), ("--agent.discount", "0.9"), ("--recipe", "hil_serl")])
def test_recording_shapes_reward_with_discount_of_training(
    given: tuple[str, ...], tmp_path: Path
) -> None:
    reward = ("--reward.kind", "progress", "--reward.topic", "/cell/progress")
    options = cli.parse(
        ["record", "object_flip", "--out", str(tmp_path / "demos"), *reward, *given]
    )
    recorded = persons_folder(options, {}).config
    training = run_settings("object_flip", {}, {**parse_overrides(options.overrides), "demos": 0})
    assert recorded.agent.discount == training.agent.discount
    assert (recorded.agent.discount == 0.985) == (not given)
