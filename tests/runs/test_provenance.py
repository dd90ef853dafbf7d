import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from serl.errors import BadInput
from serl.runs.assembly import make_agent
from serl.runs.config import TrainConfig, resolve
from serl.runs.folder import CONFIG as CONFIG_FILE
from serl.runs.folder import RunFolder
from serl.runs.resume import check_provenance, provenance
from serl.runs.task_setup import make_spec, make_task


def provenance_of(config: TrainConfig) -> dict[str, Any]:
    """Return the provenance as read back from a checkpoint."""
    info: dict[str, Any] = json.loads(
        json.dumps(provenance(config, make_spec(make_task(config))), allow_nan=False)
    )
    return info


CONFIG = resolve({"task": "reach", "demo_paths": ["/demos"], "agent": {"return_bounds": [0, 1]}})


def test_equal_provenance_gives_no_warning() -> None:
    assert check_provenance(provenance_of(CONFIG), provenance_of(CONFIG)) == ""


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"seed": 3}, r"made with other settings: seed: 0 != 3$"),
        ({"agent": CONFIG.agent.model_copy(update={"utd": 7})}, r"agent\.utd: \d != 7$"),
        ({"task_config": {"rate_hz": 20.0}}, "made for the spec"),
    ],
)
def test_changed_setting_that_affects_parameters_is_refused(
    change: dict[str, Any], line: str
) -> None:
    with pytest.raises(BadInput, match=line):
        check_provenance(provenance_of(CONFIG), provenance_of(CONFIG.model_copy(update=change)))


def test_checkpoint_from_before_a_setting_has_its_default() -> None:
    before = provenance_of(CONFIG)
    del before["settings"]["agent"]["actor_average"], before["settings"]["learner"]["n_step"]
    assert check_provenance(before, provenance_of(CONFIG)) == ""
    averaged = {"agent": CONFIG.agent.model_copy(update={"actor_average": 0.9})}
    with pytest.raises(BadInput, match=r"other settings: agent\.actor_average: 0\.0 != 0\.9$"):
        check_provenance(before, provenance_of(CONFIG.model_copy(update=averaged)))


@pytest.mark.parametrize("change", [{"steps": 7}, {"actors": 3}, {"trials": 2}])
def test_changed_setting_that_does_not_affect_parameters_is_accepted(
    change: dict[str, Any],
) -> None:
    assert (
        check_provenance(provenance_of(CONFIG), provenance_of(CONFIG.model_copy(update=change)))
        == ""
    )


@pytest.mark.parametrize("info", [{}, {"spec": 3}, {"settings": "none"}])
def test_checkpoint_without_provenance_is_refused(info: dict[str, Any]) -> None:
    mine = provenance_of(CONFIG)
    spec = {"spec": mine["spec"]} if "settings" in info else {}
    with pytest.raises(BadInput, match="checkpoint: made"):
        check_provenance(info | spec, mine)


@pytest.mark.parametrize("latent", [64, 32])
def test_run_without_state_latent_setting_is_resumed(latent: int, tmp_path: Path) -> None:
    """Older runs had one `agent.latent` for cameras and state and no `agent.state_latent`."""
    agent = {"latent": latent, "encoder_weights": "none", "hidden": [8], "device": "cpu"}
    config = resolve({"task": "pick_cube", "observe": "pixels", "agent": agent})
    run = RunFolder.create(tmp_path, config, datetime.now())
    path = run.path / CONFIG_FILE
    text = path.read_text()
    assert text.count("state_latent: null\n") == 1
    path.write_text(re.sub(" *state_latent: null\n", "", text))
    opened = RunFolder.open(run.path).config
    before = provenance_of(config)
    del before["settings"]["agent"]["state_latent"]
    assert check_provenance(before, provenance_of(opened)) == ""
    weights = make_agent(opened, make_spec(make_task(opened)), 0).actor_weights()
    assert weights["encoder.wrist.head.weight"].shape[-1] == latent
    assert weights["encoder.state.head.weight"].shape[-1] == latent
