"""Hostile commands that try to move the arm beyond its limits; `Loop` checks each setpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from serl.geometry import from_rotation_vector, multiply
from serl.guard.guard import LATCHED, GuardState
from serl.motion import Box
from serl.testing.fakes import FakeArm

from .guarding import DOWN, Loop, armed, config

Numbers = list[float]
SHELF = Box(low_m=(0.3, -0.2, 0.3), high_m=(0.4, 0.2, 0.5))
OVERSHOT = 1.04
"""Factor by which a profile may exceed the lead when the arm stops suddenly."""

AT_ONCE = 5
"""Number of hostile commands in a period of 10 ms."""


MOTION = config().motion


def inside(random: Random) -> Numbers:
    place = [
        random.uniform(low, high)
        for low, high in zip(MOTION.box_low_m, MOTION.box_high_m, strict=True)
    ]
    x, y, z = (random.uniform(-0.5, 0.5) for _ in range(3))
    return [*place, *multiply(from_rotation_vector((x, y, z)), DOWN)]


def edge(random: Random) -> Numbers:
    """Return a pose on a face or corner of the box, where an overshoot would leave the box."""
    values = inside(random)
    for place in range(3):
        ends = MOTION.box_low_m[place], MOTION.box_high_m[place], values[place]
        values[place] = random.choice(ends)
    return values


def outside(random: Random) -> Numbers:
    return [random.uniform(-3.0, 3.0) for _ in range(3)] + inside(random)[3:]


def huge(random: Random) -> Numbers:
    values = inside(random)
    values[random.randrange(7)] = random.choice([1e9, -1e30, 1e200, -1e308, 5e-324])
    return values


def not_finite(random: Random) -> Numbers:
    values = inside(random)
    values[random.randrange(7)] = random.choice([math.nan, math.inf, -math.inf])
    return values


def unnormalised(random: Random) -> Numbers:
    scale = random.choice([0.0, 0.5, 0.98, 1.02, 2.0, 1e150])
    values = inside(random)
    return values[:3] + [scale * value for value in values[3:]]


def turned(random: Random) -> Numbers:
    """Return an arbitrary orientation, of either quaternion sign."""
    quaternion = [random.gauss(0.0, 1.0) for _ in range(4)]
    size = math.hypot(*quaternion)
    return [*inside(random)[:3], *(value / size for value in quaternion)]


def short(random: Random) -> Numbers:
    return [0.0] * random.randrange(12)


HOSTILE: list[Callable[[Random], Numbers]] = [
    inside,
    edge,
    edge,
    outside,
    huge,
    not_finite,
    unnormalised,
    turned,
    short,
]


def attack(loop: Loop, random: Random) -> None:
    """Send one hostile command, in most cases one that the guard may accept."""
    kind = random.choice(HOSTILE if random.random() < 0.2 else [inside, edge, outside, turned])
    message_info = loop.message_info()
    if random.random() < 0.05:
        ahead_s = random.choice([0.06, 3600.0, -0.2, -3600.0, 1e9])
        message_info = message_info._replace(stamp_s=message_info.stamp_s + ahead_s)
    if random.random() < 0.02:
        message_info = message_info._replace(frame=random.choice(["world", "", "tool"]))
    loop.guard.command(kind(random), message_info)


def disturb(loop: Loop, random: Random) -> None:
    """Change the mode, force, joints, measurements or arm, or send a rare message."""
    loop.mode = random.choice(["policy", "policy", "teleop", "reset", "hold", None])
    loop.force[0] = random.choice([0.0, 0.0, 0.0, 16.0, 31.0])
    loop.joints[3] = random.choice([0.0, 0.0, 0.0, 2.65, 2.71, 2.76])
    loop.measured = {"pose", "joints", "wrench"}
    # The last two factors are a late and a stuck arm.
    loop.fake = FakeArm(loop.fake.pose, random.choice([0.5, 0.5, 0.9, 0.97, 1.0]))
    match random.randrange(8):
        case 0:
            loop.measured.remove(random.choice(sorted(loop.measured)))
        case 1:
            loop.guard.heartbeat("stranger policy 1", loop.message_info())
        case 2:
            loop.guard.estop("hostile")
        case 3:
            loop.guard.gripper([random.choice([0.0, 1.0, math.nan])], loop.message_info())


def recover(loop: Loop) -> None:
    """Restore all inputs, then acknowledge, reset and arm as a hasty operator would."""
    loop.mode, loop.force, loop.joints = "policy", [0.0] * 6, [0.0] * 7
    loop.measured = {"pose", "joints", "wrench"}
    loop.fake = FakeArm(loop.fake.pose)
    loop.tick(40)
    if loop.guard.state in LATCHED:
        loop.guard.ack(loop.now_s)
    if loop.guard.state in LATCHED:
        loop.guard.reset(loop.now_s)
    if loop.guard.state is GuardState.DISARMED:
        loop.guard.arm(loop.now_s)
        loop.setpoint = None  # a new motion profile begins


def run_attack(commands: int, seed: int) -> Loop:
    """Attack a loop with commands; fail at the first setpoint beyond a limit."""
    random = Random(seed)
    loop = armed(keep_out=(SHELF,))
    loop.mode = "policy"
    fast = 0
    for number in range(commands // AT_ONCE):
        often = 1 if number // 2000 % 2 else 0  # calm stretches let the arm accelerate
        for _ in range(AT_ONCE if often else 0):
            attack(loop, random)
        if not often and number % 30 == 0:
            for _ in range(AT_ONCE * 30):
                kind = random.choice([edge, outside])
                loop.guard.command(kind(random), loop.message_info())
        if random.random() < 0.003:
            disturb(loop, random)
        loop.tick()
        if loop.guard.state in LATCHED or number % 500 == 0:
            recover(loop)
        fast += loop.setpoint is not None and math.hypot(*loop.setpoint.velocity) > 0.05
    limits = loop.config.motion.limits
    for lead, most in ((loop.lead_m, limits.lead_m), (loop.lead_rad, limits.lead_rad)):
        assert 0.8 * most < lead <= OVERSHOT * most  # the attack must come close to the limit
    assert fast > commands // AT_ONCE // 50  # the arm must have moved
    return loop
