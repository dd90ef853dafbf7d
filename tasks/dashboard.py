"""Press a switch, put a card into its socket, and flip a lever, on one panel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from serl.camera import View
from serl.geometry import (
    Vector,
    conjugate,
    multiply,
    rotate,
    to_rotation_vector,
    wrap_angle,
)
from serl.motion import Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec
from serl.task import Length, Placement, Scene, TaskConfig, ViewName
from serl.tasks.parts.arm_task import (
    FORCE,
    POSITION,
    TOOL_SPEC,
    ArmExpert,
    ArmTask,
    Specs,
    State,
    Vector64,
    gripper_motion,
    small_views,
    tool_state,
)
from serl.tasks.parts.peg_and_hole import CONNECTOR, hole_detail, peg_mjcf, walls_mjcf
from serl.tasks.parts.steering import CLOSE, DOWN, OPEN, about_z, quaternion_of, scalar, steer, yaw
from serl.tasks.parts.training_defaults import from_pixels, from_state_at_length
from serl.types import Action, Array

_BOARD_M = 0.02  # height of its top
_RACK, _SOCKET = (-0.07, 0.0, _BOARD_M), (0.06, 0.0, _BOARD_M)  # in the frame of the panel
_SWITCH, _LEVER = (0.0, 0.11, _BOARD_M + 0.02), (0.0, -0.12, _BOARD_M)
_PRESS_M = 0.015  # along the switch from its hinge to the place to press
_SWITCH_RAD, _SWITCHED_RAD = 0.4, 0.3
_LEVER_RAD, _FLIPPED_RAD, _LEVER_M = 1.1, 0.9, 0.06
_CARD = replace(CONNECTOR, latch_n=0.0)  # a latch would push the card out again
_RIM_M = _BOARD_M + _CARD.rim_m
_HALF_CARD_M = _CARD.peg_m[2]


class DashboardConfig(TaskConfig):
    """Settings of the dashboard task.

    Attributes:
        spread_m: largest distance of the panel from its nominal place, along x and y.
        max_yaw_rad: largest yaw of the panel, to either side.
        clearance_m: clearance between card and socket, on each side.
        depth_m: depth of the card in its socket that must be exceeded.
        clear_m: distance from the card that the tool must exceed.
        hold_steps: number of consecutive steps for which everything must be done.
    """

    time_limit_s: float = Field(25.0, gt=0, le=86_400)
    motion: Motion = gripper_motion((0.32, -0.24, 0.035), (0.64, 0.24, 0.25), 0.6)
    views: dict[ViewName, View] = small_views(front="field", wrist="wrist")
    spread_m: tuple[Length, Length] = (0.02, 0.03)
    max_yaw_rad: float = Field(0.15, ge=0, le=math.pi)
    clearance_m: float = Field(0.0005, gt=0, le=0.0015)
    depth_m: float = Field(0.0165, gt=0, le=0.017)
    clear_m: float = Field(0.05, gt=0, le=1)
    hold_steps: int = Field(3, ge=1, le=1000)


class Dashboard(ArmTask):
    """Press a switch, move a card from its rack into a socket, and flip a lever.

    The order is free, and nothing moves back: friction holds switch and lever. The only reward
    comes at the end, once all three are done and the hand is clear of the card. The socket leaves
    half a millimetre of room on each side.
    """

    name = "dashboard"
    config: DashboardConfig

    def __init__(self, config: DashboardConfig | None = None) -> None:
        made = config or DashboardConfig()
        super().__init__(made, made.hold_steps)

    def _specs(self) -> tuple[Specs, Specs]:
        turn = ArraySpec(shape=(1,), unit="rad")
        arm = {"tcp_from_start": POSITION, "yaw_from_start": turn, **TOOL_SPEC, "force": FORCE}
        yaw_of = ArraySpec(shape=(1,), unit="rad from the tool's, modulo pi")
        scene = {
            "card_from_tcp": POSITION,
            "card_yaw": yaw_of,
            "socket_from_tip": POSITION,
            "socket_yaw": yaw_of,
            "switch_from_tcp": POSITION,
            "switch_turn": ArraySpec(shape=(1,), unit="rad since the start"),
            "lever_from_tcp": POSITION,
            "lever_turn": ArraySpec(shape=(1,), unit="rad since the start"),
        }
        return arm, scene

    @property
    def scene(self) -> Scene:
        """A panel with a switch, a rack, a socket and a lever; the card is in the rack."""
        return Scene(
            bodies=_bodies(self.config.clearance_m),
            place=self._place,
            tracked=("panel", "card", "switch", "lever"),
            fits={"card": self.config.clearance_m},
            front=_FRONT,
            detail=hole_detail(_CARD, self.config.clearance_m, "socket"),
        )

    def _arm_state(self, state: State) -> dict[str, Array]:
        turned = wrap_angle(yaw(state["tcp_pose"]) - yaw(self._start), 2.0 * math.pi)
        return {
            "tcp_from_start": state["tcp_pose"][:3] - self._start[:3],
            "yaw_from_start": scalar(turned),
            **tool_state(state),
            "force": state["wrench"][:3],
        }

    def _scene_state(self, state: State) -> dict[str, Array]:
        tcp = state["tcp_pose"][:3]
        return {
            "card_from_tcp": state["card_pose"][:3] - tcp,
            "card_yaw": scalar(turn_to(state, "card")),
            "socket_from_tip": (on_panel(state, _RIM) - tip(state)).astype(np.float32),
            "socket_yaw": scalar(turn_to(state, "panel")),
            "switch_from_tcp": state["switch_pose"][:3] - tcp,
            "switch_turn": scalar(turned_rad(state, "switch")),
            "lever_from_tcp": state["lever_pose"][:3] - tcp,
            "lever_turn": scalar(turned_rad(state, "lever")),
        }

    def is_success(self, truth: Truth) -> bool:
        """Return whether switch, card and lever are done, with the hand clear of the card."""
        return (
            turned_rad(truth, "switch") > _SWITCHED_RAD
            and turned_rad(truth, "lever") > _FLIPPED_RAD
            and self.is_in(truth)
            and away_m(truth) > self.config.clear_m
        )

    def is_in(self, truth: Truth) -> bool:
        """Return whether the card is in its socket, deep enough."""
        x, y, depth = in_socket(truth)
        return depth > self.config.depth_m and math.hypot(x, y) < 0.003

    def progress(self, truth: Truth) -> float:
        """Return progress: 0.25 for the switch, 0.45 for the card, 0.3 for the lever.

        A third of that of switch and lever is for going there, at the lever's turn.
        """
        is_in, switch, lever = self.is_in(truth), _SWITCHED_RAD, _FLIPPED_RAD
        gone = min(1.0, away_m(truth) / self.config.clear_m) if is_in else 0.0
        return (
            0.25 * _flip_progress(truth, "switch", switch, True)
            + 0.40 * (1.0 if is_in else self._card_progress(truth))
            + 0.05 * gone
            + 0.30 * _flip_progress(truth, "lever", lever, gone == 1.0)
        )

    def _card_progress(self, truth: Truth) -> float:
        """Return progress of the card outside its socket: 0.4 for the grasp, 0.5 for the way."""
        held = float(truth["card_grasped"][0])
        near = max(0.0, 1.0 - away_m(truth) / 0.25)
        x, y, depth = in_socket(truth)
        way = max(0.0, 1.0 - math.hypot(x, y, min(0.0, depth)) / 0.15)
        inside = max(0.0, depth) / _CARD.rim_m if math.hypot(x, y) < 0.003 else 0.0
        return 0.2 * near + held * (0.2 + 0.4 * way) + 0.1 * inside

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script without memory that does one thing after the other."""
        return _Expert(self, truth, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """Return settings for a task of over a hundred steps; they are not tuned."""
        if self.config.observe == "pixels":
            return from_pixels(40_000)
        return from_state_at_length(30_000, target_entropy=-8.0)

    def _place(self, rng: np.random.Generator) -> Placement:
        x, y = (np.array((0.48, 0.0)) + rng.uniform(-1.0, 1.0, 2) * self.config.spread_m).tolist()
        turned = rng.uniform(-self.config.max_yaw_rad, self.config.max_yaw_rad)
        about = about_z(turned)
        card = np.array((x, y, 0.0)) + rotate(about, (*_RACK[:2], _BOARD_M + _HALF_CARD_M))
        tool = rng.uniform((0.38, -0.12, 0.17), (0.46, 0.12, 0.21))
        return Placement(
            tcp=np.array((*tool, *DOWN)),
            bodies={
                "panel": np.array((x, y, 0.0, *about)),
                "card": np.array((*card, *about)),
            },
        )


_RIM: Vector = (_SOCKET[0], _SOCKET[1], _RIM_M)


def on_panel(state: State, place_m: Vector) -> Vector64:
    """Return the position of a place on the panel, given in its frame, in the base frame."""
    pose = state["panel_pose"]
    place: Vector64 = pose[:3].astype(np.float64) + rotate(quaternion_of(pose), place_m)
    return place


def tip(state: State) -> Vector64:
    """Return the position of the lower end of the card.  # (3,)."""
    pose = state["card_pose"]
    place: Vector64 = pose[:3] + np.array(rotate(quaternion_of(pose), (0.0, 0.0, -_HALF_CARD_M)))
    return place


def in_socket(state: State) -> Vector:
    """Return the card's tip relative to the middle of the socket's rim, x, y and depth, m."""
    dx, dy, dz = (tip(state) - on_panel(state, _RIM)).tolist()
    x, y, z = rotate(conjugate(quaternion_of(state["panel_pose"])), (dx, dy, dz))
    return x, y, -z


def turned_rad(state: State, name: str) -> float:
    """Return the rotation of the switch or of the lever since the start."""
    pose, panel = quaternion_of(state[f"{name}_pose"]), quaternion_of(state["panel_pose"])
    return to_rotation_vector(multiply(conjugate(panel), pose))[1] + 0.5 * _TRAVEL_RAD[name]


def _flip_progress(state: State, name: str, enough_rad: float, counts: bool) -> float:
    """Return progress of a part on a hinge, whose approach may count."""
    done = min(1.0, max(0.0, turned_rad(state, name) / enough_rad))
    away = float(np.linalg.norm(state[f"{name}_pose"][:3] - state["tcp_pose"][:3]))
    return max(done, 0.33 * counts * max(0.0, 1.0 - away / 0.25))


_TRAVEL_RAD = {"switch": _SWITCH_RAD, "lever": _LEVER_RAD}


def away_m(state: State) -> float:
    """Return the distance from the tool to the card's middle."""
    return float(np.linalg.norm(state["card_pose"][:3] - state["tcp_pose"][:3]))


def turn_to(state: State, name: str, tool: str = "tcp") -> float:
    """Return the angle from the tool's yaw, or its target's, to that of a body, rad."""
    return wrap_angle(yaw(state[f"{name}_pose"]) - yaw(state[f"{tool}_pose"]), math.pi)


class _Expert(ArmExpert):
    """Script without memory: the switch, then the card, then the lever.

    Each goal is a place of the tool in the frame of the panel, approached from above.
    """

    HIGH_M = 0.13
    PRESS_M = _SWITCH[2] + 0.009  # of the tool, whose pads end 12 mm below; then it presses
    PUSH_M, BEFORE_M = _BOARD_M + 0.048, -0.065  # of the tool at the lever
    GRASP_M = _CARD.below_tcp_m  # of the tool above the card's middle
    HOVER_M, ALIGNED_M, BEGUN_M, STILL_M_S = 0.003, 0.0004, 0.001, 0.006
    FEED_M = 0.010

    def __init__(self, task: Dashboard, truth: Callable[[], Truth], seed: int) -> None:
        super().__init__(truth, task.config.motion, seed)
        self._task = task

    def _act(self, truth: Truth) -> Action:
        held = truth["card_grasped"][0] > 0.5
        if turned_rad(truth, "switch") < _SWITCHED_RAD + 0.05 and not held:
            x, y, _ = _SWITCH
            return self._poke(truth, (x + _PRESS_M, y, self.PRESS_M), (0.0, 0.0, -0.015))
        if not self._task.is_in(truth):
            return self._insert(truth) if held else self._grasp(truth)
        if away_m(truth) < self._task.config.clear_m + 0.01:
            up = 0.03 if truth["gripper"][0] > 0.9 else 0.0
            return self._go(truth, np.array((0.0, 0.0, up)), OPEN)
        if turned_rad(truth, "lever") < _FLIPPED_RAD + 0.05:
            x, y, _ = _LEVER
            return self._poke(truth, (x + self.BEFORE_M, y, self.PUSH_M), (0.02, 0.0, 0.0))
        return self._go(truth, np.zeros(3), CLOSE)

    def _poke(self, truth: Truth, place_m: Vector, push_m: Vector) -> Action:
        """Go to a place from above with closed fingers, and push on from there."""
        tcp = truth["tcp_pose"][:3].astype(np.float64)
        axes = quaternion_of(truth["panel_pose"])
        off = rotate(conjugate(axes), _vector(on_panel(truth, place_m) - tcp))
        along = np.array(push_m) / np.linalg.norm(push_m)
        pushed_m = -float(along @ off)
        aside = float(np.linalg.norm(np.array(off) + pushed_m * along))
        if aside < 0.010 and -0.006 < pushed_m < 0.15 and truth["gripper"][0] < 0.1:
            shift = np.array(rotate(axes, _vector(np.array(off) + pushed_m * along + push_m)))
            return self._go(truth, shift, CLOSE)
        shift = on_panel(truth, place_m) - tcp
        if math.hypot(off[0], off[1]) > 0.006:
            high = self.HIGH_M - float(tcp[2])
            shift[2] = high
            shift[:2] *= high < 0.03
        return self._go(truth, shift, CLOSE)

    def _grasp(self, truth: Truth) -> Action:
        """Go above the card, descend with open fingers, and close them; begin again if missed."""
        tcp, opening = truth["tcp_pose"][:3].astype(np.float64), float(truth["gripper"][0])
        goal = truth["card_pose"][:3].astype(np.float64)
        goal[2] += self.GRASP_M
        off = math.hypot(*(goal - tcp)[:2]) + 0.02 * abs(turn_to(truth, "card"))
        if off < 0.004 and abs(goal[2] - tcp[2]) < 0.004 and opening > 0.05:
            return self._go(truth, goal - tcp, CLOSE)
        if off > 0.004 or opening < 0.9:
            goal[2] = tcp[2] if opening < 0.9 and off < 0.02 else self.HIGH_M
            goal[:2] = goal[:2] if goal[2] - tcp[2] < 0.03 else tcp[:2]
        return self._go(truth, goal - tcp, OPEN)

    def _insert(self, truth: Truth) -> Action:
        """Lift the card, carry it over the socket, align it, and push it in."""
        x, y, depth = in_socket(truth)
        lateral, turn = math.hypot(x, y), turn_to(truth, "panel", "card")
        slow = float(np.abs(truth["tcp_twist"][:3]).max()) < self.STILL_M_S
        led = float(truth["target_pose"][2] - truth["tcp_pose"][2])
        begun = led < -0.001 and depth > -self.HOVER_M
        near = lateral < 0.01 and depth > -0.03
        inside = depth > 0.001 and lateral < 0.002
        aligned = lateral < (self.BEGUN_M if begun else self.ALIGNED_M) and abs(turn) < 0.01
        shift = np.array(rotate(quaternion_of(truth["panel_pose"]), (-x, -y, 0.0)))
        if inside or (aligned and (begun or slow) and depth > -self.HOVER_M - 0.001):
            shift[2] = -self.FEED_M if depth > 0.002 else -0.003
        elif near:
            shift[2] = depth + self.HOVER_M
        else:  # over the rack first, then over the socket
            shift[2] = depth + 0.03
            shift[:2] *= shift[2] < 0.01
        if slow and near:  # an arm at rest off its target gets no nearer
            gain = 0.0 if inside else 0.6
            lead = truth["target_pose"][:3] - truth["tcp_pose"][:3]
            ahead = lead * (1.0, 1.0, float(inside))
            shift = np.array((gain * shift[0], gain * shift[1], shift[2])) + ahead
        return self._go(truth, shift, CLOSE, turn, quiet=near)

    def _go(
        self,
        truth: Truth,
        shift_m: Vector64,
        gripper: float,
        turn_rad: float | None = None,
        quiet: bool = False,
    ) -> Action:
        """Return an action towards a shift of the tool; it turns to the panel's yaw meanwhile."""
        lead = (truth["target_pose"][:3] - truth["tcp_pose"][:3]).astype(np.float64)
        if turn_rad is None:
            turn_rad = turn_to(truth, "panel", "target")
        noise = self._rng.normal(0.0, self.NOISE * (0.1 if quiet else 1.0), len(self._motion.axes))
        return steer(self._motion, shift_m - lead, turn_rad, gripper, noise)


def _vector(values: Any) -> Vector:
    x, y, z = (float(value) for value in values)
    return x, y, z


_BLUE, _GREY, _ORANGE, _PALE = (
    "0.36 0.52 0.68 1",
    "0.80 0.82 0.85 1",
    "0.94 0.45 0.20 1",
    "0.62 0.76 0.80 1",
)


def _box(place: Vector, half: Vector, colour: str, more: str = "") -> str:
    at, size = (" ".join(f"{value:.5g}" for value in values) for values in (place, half))
    return f'<geom type="box" pos="{at}" size="{size}" rgba="{colour}" {more}/>'


def _rack() -> str:
    """Return the MJCF of a rack that holds the card upright, with 1 mm of room on each side."""
    x, y, z = _RACK
    dx, dy = _CARD.peg_m[0] + 0.001, _CARD.peg_m[1] + 0.001
    thick, half = 0.004, 0.006
    slippery = 'friction="0.1 0.005 0.0001"'
    return "".join(
        _box((x + sx * (dx + thick), y + sy * (dy + thick), z + half), size, _BLUE, slippery)
        for sx, sy, size in (
            (1.0, 0.0, (thick, dy, half)),
            (-1.0, 0.0, (thick, dy, half)),
            (0.0, 1.0, (dx + 2.0 * thick, thick, half)),
            (0.0, -1.0, (dx + 2.0 * thick, thick, half)),
        )
    )


def _hinge(name: str, place: Vector, travel_rad: float, friction_nm: float, parts: str) -> str:
    """Return the MJCF of a body on a hinge along y, held by friction, at the end of its travel."""
    at = " ".join(f"{value:.5g}" for value in place)
    return (
        f'<body name="{name}" pos="{at}" euler="0 {-0.5 * travel_rad} 0" gravcomp="1">'
        f'<joint type="hinge" axis="0 1 0" range="0 {travel_rad}" frictionloss="{friction_nm}"'
        f' damping="0.01" armature="0.0005"/>{parts}</body>'
    )


def _bodies(clearance_m: float) -> str:
    """Return the MJCF of the panel with its moving parts, and of the card."""
    x, y, z = _SWITCH
    base = _box((x, y, z - 0.014), (0.028, 0.018, 0.006), _BLUE)
    rocker = _box((0.0, 0.0, 0.0), (0.024, 0.014, 0.003), _ORANGE, 'mass="0.02"')
    stick = (
        f'<geom type="capsule" fromto="0 0 0.01 0 0 {_LEVER_M}" size="0.006" mass="0.03"'
        f' rgba="{_ORANGE}"/>'
    )
    x, y, z = _LEVER
    feet = "".join(
        _box((x, y + s * 0.014, z + 0.006), (0.012, 0.004, 0.006), _BLUE) for s in (1, -1)
    )
    socket = " ".join(map(str, _SOCKET))
    return f"""
<camera name="field" {_FRONT} fovy="40"/>
<body name="panel" mocap="true">
  {_box((0.0, 0.0, 0.5 * _BOARD_M), (0.13, 0.16, 0.5 * _BOARD_M), _GREY)}
  {_rack()}{base}{feet}
  <body name="socket" pos="{socket}">{walls_mjcf(_CARD, clearance_m)}</body>
  {_hinge("switch", _SWITCH, _SWITCH_RAD, 0.03, rocker)}
  {_hinge("lever", _LEVER, _LEVER_RAD, 0.08, stick)}
</body>
{peg_mjcf(_CARD, "card")}
"""


_FRONT = 'pos="0.85 -0.30 0.41" xyaxes="0.629 0.777 0 -0.482 0.390 0.785"'

task = Dashboard
