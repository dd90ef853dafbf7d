"""Files for containers, editors and CI: syntax, commands and paths."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from serl.arm_profile import load_robot
from serl.cli import main as cli

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
ARMS = sorted(path.stem for path in (ROOT / "docker/arms").glob("*.repos"))


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


def test_volume_of_compose_file_belongs_to_user_of_image() -> None:
    """Docker gives a new volume the owner of the folder at its place in the image, else root."""
    services = read("docker/simulation.yaml")["services"].values()
    places = [volume.partition(":")[2] for each in services for volume in each["volumes"]]
    made = re.search(r"mkdir -p (\S+) && chown -R serl (\S+)$", DOCKERFILE, re.MULTILINE)
    assert made
    assert places == [made[1]]
    assert made[1].startswith(f"{made[2]}/")


def test_compose_files_require_no_variable_within_a_default() -> None:
    """Docker Compose evaluated unused defaults, too, until compose-go ddb94f1 (2026-01-16)."""
    text = "".join(path.read_text() for path in (ROOT / "docker").glob("*.yaml"))
    assert re.findall(r"\$\{[^}]*\$\{[^}]*\?.*", text) == []


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


def test_ci_workflow_runs_checks_site_build_bridges_image_build_and_training() -> None:
    workflow = read(".github/workflows/ci.yml")
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert ".ci/run" in steps
    assert (ROOT / ".ci/run").is_file()
    assert workflow["jobs"]["docs"]["steps"][-1] == {"run": "make docs"}
    assert "make bridges" in steps
    tested = workflow["jobs"]["check"]["strategy"]["matrix"]["python"]
    assert [tested[0], tested[-1]] == ["3.11", "3.13"]
    assert PROJECT["requires-python"] == ">=3.11,<3.14"
    assert any("docker build -f docker/Dockerfile" in step for step in steps)
    line = next(step for step in steps if "bin/serl train" in step)
    assert cli.parse(line.partition("bin/serl ")[2].split()).command == "train"


def test_compose_file_of_arms_builds_driver_and_serl_image() -> None:
    text = (ROOT / "docker/arm.Dockerfile").read_text()
    services = read("docker/arm.yaml")["services"]
    assert services.keys() == read("docker/robot.yaml")["services"].keys() == {"driver", "serl"}
    for name, service in services.items():
        build = service["build"]
        assert (ROOT / "docker" / build["context"] / build["dockerfile"]).is_file()
        assert f" AS {build['target']}\n" in text
        assert build["target"] == name
        assert build["args"].keys() == {"ARM"}
    assert "USER ubuntu" in text.partition(" AS serl\n")[2], "the container runs as root"
    for path in re.findall(r"^COPY (docker/\S+)", text, re.MULTILINE):
        assert (ROOT / path).exists()


@pytest.mark.parametrize("arm", ARMS)
def test_driver_versions_of_arm_match_its_profile_and_page(arm: str) -> None:
    cited = ast.get_docstring(ast.parse((ROOT / f"robots/{arm}.py").read_text())) or ""
    page = (ROOT / "docs/howto/bring-up.md").read_text()
    for name, source in read(f"docker/arms/{arm}.repos")["repositories"].items():
        version, address = source["version"], source["url"]
        place = address.removeprefix("https://github.com/").removesuffix(".git")
        assert source["type"] == "git"
        if re.fullmatch("[0-9a-f]{40}", version):
            assert f"{place} " in f"{' '.join(cited.split())} ", name
            assert version[:7] in cited, name
        else:
            assert f"{name} {version}" in page or f"{name} has the tag {version}" in page


@pytest.mark.parametrize("arm", ARMS)
def test_controllers_of_arm_match_its_profile(arm: str) -> None:
    profile, found = load_robot(arm), read(f"docker/arms/{arm}.yaml")
    node = profile.controller.node.strip("/")
    own = found[node]["ros__parameters"]
    assert tuple(own["joints"]) == profile.joints
    for link, frame in (("end_effector", profile.tool_frame), ("base", profile.base_frame)):
        names = {name: value for name, value in own.items() if link in name}
        assert set(names.values()) == {frame}, names
    for name, value in profile.controller.expected.items():
        group, _, key = name.partition(".")
        assert own[group][key] == value
    loaded = found.get("controller_manager", {"ros__parameters": {node: own}})["ros__parameters"]
    built = re.search(rf'^{arm}\) packages="(.*)"', (ROOT / "docker/arm.sh").read_text(), re.M)
    assert built
    assert loaded[node]["type"].split("/")[0] in built[1].split()


def test_joint_state_publisher_of_xarm7_publishes_gripper_beside_topic_of_arm() -> None:
    """It repeats the arm's joints as well: the guard refuses a second publisher of these."""
    script, profile = (ROOT / "docker/arm.sh").read_text(), load_robot("xarm7")
    found = re.findall(r" joint_state_publisher --ros-args -r joint_states:=(\S+)", script)
    assert profile.gripper is not None
    assert [f"/{name}" for name in found] == [profile.gripper.state.name]
    assert profile.gripper.state.name != profile.joint_states.name


def test_bring_up_page_shows_commands_of_arm_script() -> None:
    script = (ROOT / "docker/arm.sh").read_text()
    spawner = "ros2 run controller_manager spawner --controller-manager-timeout 60"
    script = re.sub(r'"(\$ROBOT_IP|\$ARMS/\w+\.yaml)"', r"\1", script)
    script = script.replace("spawn ", f"{spawner} ")
    done = {line.strip().removesuffix(" &") for line in script.splitlines()}
    page = (ROOT / "docs/howto/bring-up.md").read_text()
    shown = re.findall(r"^ros2 .*", page, re.MULTILINE)
    assert len(shown) == 10
    assert [line for line in shown if line not in done] == []
    assert {f"`{arm}`" for arm in ARMS} == set(re.findall(r"^\| (`\w+`) ", page, re.MULTILINE))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["build", "panda"], "arm 'panda': expected franka, ur5e, xarm7 or kinova_gen3"),
        (["start", "ur5e"], "expected the address of the arm"),
        (["stop", "ur5e"], "expected: arm.sh build ARM, or arm.sh start ARM ROBOT_IP"),
    ],
)
def test_arm_script_reports_invalid_arguments(words: list[str], line: str) -> None:
    done = subprocess.run(
        [str(ROOT / "docker/arm.sh"), *words], capture_output=True, text=True, env={}, check=False
    )
    assert done.returncode
    assert line in done.stderr
