"""Files for containers, editors and CI: syntax, commands and paths."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from serl.cli import main as cli

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


@pytest.mark.parametrize("path", ["docker/simulation.yaml", "docker/robot.yaml"])
def test_compose_files_start_valid_training_command(path: str) -> None:
    services = read(path)["services"]
    trained = [each for each in services.values() if each.get("image") == "serl"]
    assert trained
    for service in trained:
        words = [re.sub(r"\$\{\w+:[-?]([^}]*)\}", "pick_cube", word) for word in service["command"]]
        assert cli.parse(words).command == "train"
        build = service["build"]
        assert (ROOT / "docker" / build["context"] / build["dockerfile"]).is_file()
        assert service.get("shm_size") or service.get("ipc") == "host"


def test_image_installs_existing_extras_as_unprivileged_user() -> None:
    steps = [line.split()[0] for line in DOCKERFILE.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert steps[0] == "FROM"
    assert steps[-2:] == ["ENTRYPOINT", "CMD"]
    assert "USER serl" in DOCKERFILE, "the container runs as root"
    found = re.search(r'"\.\[(.*)\]"', DOCKERFILE)
    assert found
    assert set(found[1].split(",")) <= EXTRAS.keys()


def test_devcontainer_uses_same_dockerfile() -> None:
    made = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert (ROOT / ".devcontainer" / made["build"]["dockerfile"]).samefile(
        ROOT / "docker/Dockerfile"
    )


def test_ci_workflow_runs_checks_image_build_and_training() -> None:
    workflow = read(".github/workflows/ci.yml")
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert ".ci/run" in steps
    assert (ROOT / ".ci/run").is_file()
    assert any("docker build -f docker/Dockerfile" in step for step in steps)
    line = next(step for step in steps if "bin/serl train" in step)
    assert cli.parse(line.partition("bin/serl ")[2].split()).command == "train"
