"""Construction of the MuJoCo model: arms in a task's scene, with SERL's impedance law."""

from __future__ import annotations

import mujoco

from serl.sim.physics import franka
from serl.sim.physics.arm import sensors_mjcf
from serl.sim.randomization import distractors_mjcf
from serl.sim.render.lighting import LIGHTS, LOOKS
from serl.task import Scene

PHYSICS_DT_S = 0.002

# SERL's real-robot law is F = clip(K e) - D v for each axis. Springs and dampers are separate
# actuators so that the clip bounds only the spring: one clamped actuator overshoots 19-28 %.
# D 89 rather than 180: the setpoint is jerk-limited, so that the softly damped mode is hardly
# excited, and the tool lags the setpoint by only v D / K (mean 4 mm, not 7, while picking).
STIFFNESS_N_M, DAMPING_N_S_M, SPRING_CLIP_N = 2000.0, 89.0, 20.0
ROTATION_STIFFNESS_NM, ROTATION_DAMPING_NM_S, ROTATION_CLIP_NM = 150.0, 7.0, 4.0

# Euler takes the damping of joints implicitly; that of actuators is far from its limit (D dt / m is
# 0.06 along the axes, 0.13 about them). Euler is as near to a 0.1 ms solution as implicitfast,
# which costs 11 % more. A scene's own `option` comes later and takes precedence.
# A body at rest sleeps until it is touched, which saves a third of the time. Bodies have a few
# geoms each: testing all pairs is faster than a search tree.
_MODEL = """
<mujoco model="serl">
<compiler angle="radian" autolimits="true"/>
<option timestep="{dt}" integrator="Euler" cone="elliptic" impratio="10">
  <flag sleep="enable" midphase="disable"/>
</option>
{looks}
<default>
  <geom solref="0.005 1" solimp="0.9 0.95 0.001"/>
  {defaults}
</default>
<worldbody>
  {lights}
  <geom name="table" type="plane" size="2 2 0.01" material="tiles"/>
  <camera name="front" fovy="40" {front}/>
  <site name="origin"/>
  {arms}
  {bodies}
</worldbody>
<tendon>{tendons}</tendon>
<actuator>{actuators}</actuator>
<sensor>{sensors}</sensor>
{extra}
</mujoco>
"""


def build_model(scene: Scene, randomize: str = "none") -> mujoco.MjModel:
    """Build the model of `scene_mjcf`."""
    return mujoco.MjModel.from_xml_string(scene_mjcf(scene, randomize))


def scene_mjcf(scene: Scene, randomize: str = "none") -> str:
    """Return the MJCF of the arms of `scene`: joints `joint1..7`, sites, targets, cameras.

    The names of each arm begin with its prefix. Randomised worlds contain distractors as well.
    """
    prefixes = list(scene.bases)
    moved = (franka.gripper_mjcf(prefix) + _impedance_mjcf(prefix) for prefix in prefixes)
    return _MODEL.format(
        dt=PHYSICS_DT_S,
        looks=LOOKS,
        lights=LIGHTS,
        defaults=franka.DEFAULTS,
        arms="".join(_arm_mjcf(scene, *base) for base in enumerate(prefixes)),
        front=scene.front,
        bodies=scene.bodies + distractors_mjcf(randomize),
        tendons="".join(map(franka.tendons_mjcf, prefixes)),
        actuators="".join(moved),
        sensors="".join(map(sensors_mjcf, prefixes)),
        extra=scene.extra,
    )


def _arm_mjcf(scene: Scene, number: int, prefix: str) -> str:
    """Return the MJCF of an arm at its base pose, and of the mocap body of its target rotation."""
    x, y, z, yaw = scene.bases[prefix]
    target = f"{prefix}rotation_target"
    return f"""
<body name="{target}" mocap="true"><site name="{target}"/></body>
<frame pos="{x} {y} {z}" euler="0 0 {yaw}">{franka.arm_mjcf(scene.tool, prefix, number)}</frame>
"""


def _impedance_mjcf(prefix: str) -> str:
    """Return the actuators: a clipped spring (`spring0` to `spring5`) and a damper for each axis.

    The controls of the first three springs are the target position, in the base frame: errors and
    clips are along its axes. Rotation errors are relative to the target, a mocap body, and
    never wrap at pi. Damping is isotropic, so the dampers use the tool's frame, which is cheaper;
    their controls are the wrench that the tool exerts, in its frame.
    """
    springs, dampers = [], []
    for axis in range(6):
        gear = " ".join("1" if index == axis else "0" for index in range(6))
        law = f'site="{prefix}tcp" gear="{gear}" biastype="affine"'
        if axis < 3:
            reference, gain, stiffness = "origin", STIFFNESS_N_M, STIFFNESS_N_M
            damping, clip = DAMPING_N_S_M, SPRING_CLIP_N
        else:
            reference, gain = f"{prefix}rotation_target", 0.0
            stiffness = ROTATION_STIFFNESS_NM
            damping, clip = ROTATION_DAMPING_NM_S, ROTATION_CLIP_NM
        springs.append(
            f'<general name="{prefix}spring{axis}" {law} refsite="{reference}" gainprm="{gain}"'
            f' biasprm="0 -{stiffness} 0" forcerange="-{clip} {clip}"/>'
        )
        dampers.append(f'<general {law} gainprm="1" biasprm="0 0 -{damping}"/>')
    return "".join(springs + dampers)
