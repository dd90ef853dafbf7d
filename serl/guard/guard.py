"""The guard: the only one that commands an arm. No ROS, no clock, no learning in here.

It takes what the actor asks for and what the arm measures, each with the time of its arrival, and
`tick`, called 100 times a second, gives the setpoint to publish. It distrusts everybody: what is
late, wrong or silent stops the arm. `serl/ros/nodes/guard.py` is its process.

    guard = Guard(config, latch)            # latch: what `LatchFile.read` says
    guard.heartbeat("<lease> <mode> <count> <person's silence in ms>", heard)  # the last: teleop
    guard.command(pose7, heard)             # 10 Hz, base_T_tcp of the target, xyzw
    guard.gripper([1.0 or 0.0], heard)      # open or close; sent with each command
    guard.pose / joints / wrench(values, heard)      # measured
    guard.robot_error(text)                 # what the arm reports of itself; "" when it is well
    setpoint = guard.tick(now_s)            # None: publish nothing; the arm holds by itself
    guard.estop(cause); guard.ack(now_s); guard.reset(now_s); guard.arm(now_s); guard.disarm()
    guard.state, guard.cause, guard.latch, guard.opening, guard.counts, guard.yields

What an actor has to know (all the numbers are in `GuardConfig`):

- DISARMED -> `arm` -> HOLD -> the heartbeat's mode, once beats, commands and measurements are
  fresh. Whatever is missing brings it back to HOLD; it goes on by itself when that is over and
  the arm has come to rest. So does a refused command, until the next good one.
- From a person to a policy or a reset: the arm rests for 0.5 s first, by itself. A person who was
  lost (beats or commands ended) has to take over again, or somebody calls `arm` again after
  `disarm`: until then neither policy nor reset moves the arm.
- An actor that another one replaces must have been silent for 1 s. While two beat, nobody drives.
- PROTECTIVE_STOP: `ack`, then `arm`. ESTOP: `ack`, then `reset`, then `arm`. Both need an arm at
  rest, without error, with fresh measurements; after them resets and persons move slowly until a
  policy drives again. The first start (no latch file) is an ESTOP.
- A simulated arm that is put elsewhere jumps: `disarm` before it, `arm` after it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from serl.errors import BadInput
from serl.geometry import align_sign
from serl.guard.checks import (
    Heard,
    check_command,
    far_outside,
    is_inside,
    may_be,
)
from serl.guard.config import LATCHED, MOVING, GuardConfig, GuardState
from serl.guard.gripper import GripperCommand
from serl.guard.inputs import Lease, MeasuredArm, MessageAge, Nonsense
from serl.guard.latch import Latch
from serl.guard.monitors import Following
from serl.guard.standing import Standing
from serl.motion import Limits, Pose, within_lead
from serl.setpoint import (
    PROFILE_PERIOD_S,
    Setpoint,
    advance_setpoint,
    at_rest,
    brake_setpoint,
)

__all__ = ["LATCHED", "MOVING", "Guard", "GuardConfig", "GuardState", "Heard", "Latch"]

_FOLLOWING = MOVING | {GuardState.HOLD}


class Guard:
    """Made disarmed, or stopped when the latch says so.

    Attributes:
        state, cause: what it is doing, and why, of a hold or a stop.
        lease: who drives.
        measured: what the arm says of itself.
        counts: refusals and other incidents by reason.
    """

    def __init__(self, config: GuardConfig, latch: Latch | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.state, self.cause = latch or Latch()
        self._config = config
        self._limits, self._slow = config.motion.limits, config.slow
        self.measured = MeasuredArm(config, self.counts)
        self.lease = Lease(config, self.counts)
        self._command = MessageAge("command", config.command_s, self.counts)
        self._gripper = GripperCommand(config, self.counts)
        self._nonsense = Nonsense(3, "commands that are not finite")
        self._ticked_s = -math.inf
        self._awake_s = -math.inf  # armed, or awake, since then
        self._following = Following(config)
        self._target: Pose | None = None
        self._setpoint: Setpoint | None = None
        self._last: Setpoint | None = None  # before the guard slept
        self._standing = Standing(config, self.measured)
        self._active = False  # was armed, and publishes
        self._braking = self._disarming = False
        self._lost_human = self._recovering = self._acknowledged = False
        self._touched = False  # in a protective stop, or it was stopped for that

    @property
    def opening(self) -> float | None:
        """Commanded opening of the gripper: 1 open, 0 closed; None before the first since `arm`."""
        return self._gripper.opening

    @property
    def active(self) -> bool:
        """Whether it was armed and has not been disarmed since: it drives the arm or holds it."""
        return self._active

    @property
    def yields(self) -> bool:
        """Whether a touch was felt in a protective stop, so that the controller is to be soft.

        An emergency stop that follows leaves it soft, and one without a touch before it stiff.
        """
        return self._touched and self.state in LATCHED

    @property
    def latch(self) -> Latch:
        """What has to be on the disk now."""
        if self.state in LATCHED:
            return Latch(self.state, self.cause)
        armed = self.state is not GuardState.DISARMED
        return Latch(GuardState.HOLD if armed else GuardState.DISARMED)

    @property
    def pace(self) -> Limits | None:
        """The limits on its way to the target, slow ones at times; None: it brakes, or holds."""
        if self.state not in MOVING or self._braking or self._setpoint is None:
            return None
        slow = (
            self.measured.is_touching
            or self.measured.joints.slow
            or (self._recovering and self.state is not GuardState.POLICY)
            or not is_inside(self._setpoint.pose, self._config)
        )
        return self._slow if slow else self._limits

    def heartbeat(self, text: str, heard: Heard) -> None:
        """The actor lives: "<lease> <mode> <count> <silence, ms>", at most 20 ms apart."""
        self.lease.hear(text, heard)

    def command(self, values: Sequence[float], heard: Heard) -> None:
        """The target that the actor asks for: x y z (m) and a quaternion xyzw."""
        self._note_not_finite(values, heard)
        with self._command.hearing(heard.now_s):
            self._target = check_command(values, heard, self._config)
        if self._command.fault:
            self._hold(self._command.fault, heard.now_s)

    def gripper(self, values: Sequence[float], heard: Heard) -> None:
        """Open (1) or close (0) the gripper; not late, nor while the arm holds, nor too often."""
        self._note_not_finite(values, heard)
        self._gripper.hear(values, heard, self.state in MOVING)

    def pose(self, values: Sequence[float], heard: Heard) -> None:
        """Where the tool is: base_T_tcp."""
        self.measured.hear_pose(values, heard)
        if jumps := self.measured.jumps:
            self._stop_if_armed(jumps)

    def joints(self, values: Sequence[float], heard: Heard) -> None:
        """Where the joints are (rad)."""
        self.measured.hear_joints(values, heard)
        if danger := self.measured.joints.danger:
            self._stop_if_armed(danger)

    def wrench(self, values: Sequence[float], heard: Heard) -> None:
        """What the surroundings exert on the tool: force (N), torque (Nm)."""
        self.measured.hear_wrench(values, heard)
        if self.measured.touch:
            self._stop_if_armed(self.measured.touch)
            stopped = self._active and self.state is GuardState.PROTECTIVE_STOP
            self._touched |= stopped and not self.measured.rivals

    def doubt(self, rivals: str) -> None:
        """Take which nodes publish measurements beside the arm's driver; empty for none.

        While there are any an armed arm is stopped, a stopped one does not give way, and no stop is
        acknowledged.
        """
        if self.cause and rivals.startswith(self.cause):
            self.cause = rivals  # a name that is known only now
        self.measured.rivals = rivals
        if rivals:
            self._stop_if_armed(rivals)

    def robot_error(self, text: str) -> None:
        """What the arm reports of itself; it stops the arm, and nothing here clears it."""
        self.measured.error = text
        if text:
            self.stop(f"the arm reports {text}")

    def stop(self, cause: str) -> None:
        """Protective stop: brake, hold, stay stopped until a person acknowledges it."""
        if self.state not in LATCHED:
            self._latch(GuardState.PROTECTIVE_STOP, cause)

    def estop(self, cause: str) -> None:
        """Emergency stop, from any state; one that is pressed again was not acknowledged yet."""
        self._acknowledged = False
        if self.state is not GuardState.ESTOP:
            self._latch(GuardState.ESTOP, cause)

    def ack(self, now_s: float) -> str:
        """A person saw the stop. It ends a protective stop; says what comes next.

        Raises:
            BadInput: nothing is stopped, or the cause is still there.
        """
        if self.state not in LATCHED:
            raise BadInput(f"nothing to acknowledge: the guard is in {self.state}")
        self._refuse_unless_well(now_s)
        if self.state is GuardState.ESTOP:
            self._acknowledged = True
            return "acknowledged; call reset next"
        self._recovering = True
        return self._disarmed()

    def reset(self, now_s: float) -> str:
        """End an acknowledged emergency stop, disarmed.

        Raises:
            BadInput: there is none, or the cause is still there.
        """
        if self.state is not GuardState.ESTOP or not self._acknowledged:
            wanted = "an acknowledged emergency stop"
            raise BadInput(f"nothing to reset: the guard is in {self.state}, expected {wanted}")
        self._refuse_unless_well(now_s)
        self._recovering = True
        return self._disarmed()

    def arm(self, now_s: float) -> str:
        """Hold the arm where it is, ready to be driven.

        Raises:
            BadInput: the guard is not disarmed, or the arm is not well, at rest, and near its box.
        """
        if self.state is not GuardState.DISARMED:
            raise BadInput(f"cannot arm: the guard is in {self.state}, expected disarmed")
        self._refuse_unless_well(now_s)
        assert self.measured.pose is not None
        self._seed(self.measured.pose)
        self.state, self.cause = GuardState.HOLD, "armed"
        self._active, self._awake_s, self._ticked_s = True, now_s, now_s
        self._lost_human = self._disarming = False
        self._target, self._command.heard_s = None, -math.inf
        return "armed"

    def refusal(self, now_s: float) -> str:
        """Why `ack`, `reset` or `arm` is refused now; empty when a person's word helps, or none."""
        if self.state in _FOLLOWING:
            return ""
        if trouble := self.measured.trouble(now_s):
            return trouble
        resting = self._setpoint.pose if self.yields and self._setpoint is not None else None
        if resting is not None and (away := self._standing.displacement(resting)):
            return away
        if self.state is GuardState.DISARMED and self.measured.pose is not None:
            far = far_outside(self.measured.pose, self._config)
            return f"{far}: bring the arm there by hand" if far else ""
        person = self.lease.mode is GuardState.TELEOP and self.lease.is_fresh(now_s)
        return "a person drives; let go first" if person and self.state in LATCHED else ""

    def disarm(self) -> str:
        """Brake, then be silent; a stop stays one."""
        if self.state in LATCHED:
            return f"stays in {self.state}"
        if self.state is GuardState.DISARMED:
            return "disarmed"
        self._disarming = True
        return "disarming"

    def tick(self, now_s: float) -> Setpoint | None:
        """The setpoint of this period of 10 ms; None: nothing is to be published."""
        late = now_s - self._ticked_s > self._config.heartbeat_s
        self._ticked_s = now_s
        if not self._active:
            return None
        if late:
            self._lose_track(now_s)
        self._watch_arm(now_s)
        if self.state in _FOLLOWING:
            self._decide(now_s)
        if self._setpoint is None and (pose := self.measured.fresh_pose(now_s)) is not None:
            self._begin_anew(pose)
        if self.state is GuardState.DISARMED or self._setpoint is None:
            return None
        return self._advance(now_s)

    def _decide(self, now_s: float) -> None:
        """Drive as the actor asks, or hold."""
        silent_s = now_s - max(self.lease.heard_s, self._awake_s)
        self._disarming |= silent_s > self._config.silent_s
        if hindrance := self._hindrance(now_s):
            self._hold(hindrance, now_s)
            resting = self._setpoint is None or (not self._braking and at_rest(self._setpoint))
            if self._disarming and resting:
                self._disarmed()
        elif not self._braking:
            self.state, self.cause = self.lease.mode, ""
            self._lost_human &= self.state is not GuardState.TELEOP
            self._recovering &= self.state is not GuardState.POLICY

    def _hindrance(self, now_s: float) -> str:
        """Why the arm has to hold; empty when it may move."""
        lease = self.lease
        if self._disarming:
            return "disarming"
        if hindrance := lease.hindrance(now_s) or self.measured.hindrance(now_s):
            return hindrance
        if lease.mode is GuardState.HOLD:
            return "the actor holds"
        if hindrance := self._command.hindrance(now_s) or self._following.hindrance(now_s):
            return hindrance
        if self._target is None:
            return "no command yet"
        if lease.mode is not GuardState.TELEOP:
            if self._lost_human:
                return "a person was lost: take over again, or disarm and arm"
            if now_s - lease.human_s < self._config.release_s:
                return "a person let go"
        return self.measured.joints.near if lease.mode is GuardState.POLICY else ""

    def _hold(self, cause: str, now_s: float) -> None:
        """Come to rest, and stay there as long as there is a reason."""
        if self.state not in _FOLLOWING:
            return
        if self.state in MOVING:
            heard = self.lease.is_fresh(now_s) and self._command.is_fresh(now_s)
            lost = not heard or self.lease.is_device_silent(now_s)
            self._lost_human |= lost and self.state is GuardState.TELEOP
            self.counts[f"hold: {cause}"] += 1
            self.state = GuardState.HOLD
            self._brake()
        self.cause = cause

    def _advance(self, now_s: float) -> Setpoint:
        """The next setpoint: of a stop, of a hold, or on the way to the target."""
        assert self._setpoint is not None
        before = self._setpoint
        if not self._braking:
            goal, limits = self._goal(now_s)
            after = advance_setpoint(before, goal, limits, PROFILE_PERIOD_S)
            if may_be(after, before.pose, self._config):
                self._setpoint = after
                return after
            self._braking = True  # a path that would leave the box, or enter one to keep out of
        self._setpoint = after = brake_setpoint(before, self._limits, PROFILE_PERIOD_S)
        if at_rest(after):
            self._braking = False
            self._standing.rest(after.pose, self.state, now_s)
        return after

    def _goal(self, now_s: float) -> tuple[Pose, Limits]:
        """Where the setpoint goes, and within which limits."""
        pose, pace = self.measured.fresh_pose(now_s), self.pace
        if pace is not None and pose is not None and self._target is not None:
            return within_lead(self._target, pose, pace), pace
        assert self._setpoint is not None
        place = self._setpoint.pose
        return self._standing.find(place, self.state, self.yields, now_s), self._slow

    def _watch_arm(self, now_s: float) -> None:
        """Stop an arm that is silent, or elsewhere than it should be, for longer than it may."""
        pose, following = self.measured.fresh_pose(now_s), self._following
        if now_s - max(self.measured.heard_s(), self._awake_s) > self._config.lost_s:
            self._stop_if_armed("the arm fell silent")
        if pose is None or self._setpoint is None:
            following.begin()
            return
        following.watch(pose, self._setpoint.pose, now_s)
        if following.is_lost and self.state in LATCHED:
            self._note_moved()
        elif following.is_lost:
            self.stop("the arm does not follow")
            self._standing.moved = True
        if self.state in MOVING:
            following.lead(pose, self._setpoint.pose, self.measured.is_pushing, now_s)

    def _note_moved(self) -> None:
        """The arm left its setpoint though it is stopped, or its pose is wrong: say so, once."""
        if not self._standing.moved:
            self._standing.moved = True
            self.counts["moved while stopped"] += 1
            self.cause += "; the arm was moved, or its pose is wrong"

    def _note_not_finite(self, values: Sequence[float], heard: Heard) -> None:
        if all(map(math.isfinite, values)):
            return
        if trouble := self._nonsense.hear(heard.now_s):
            self._stop_if_armed(trouble)

    def _stop_if_armed(self, cause: str) -> None:
        if self.state in _FOLLOWING:
            self.stop(cause)

    def _latch(self, state: GuardState, cause: str) -> None:
        resting = self._setpoint is not None and at_rest(self._setpoint)
        stands = resting and self.state not in MOVING
        if self.state not in LATCHED:
            self._standing.forget()
        self.state, self.cause = state, cause or "no reason given"
        self.counts[str(state)] += 1
        self._acknowledged = False
        self._brake(stands)

    def _brake(self, stands: bool = False) -> None:
        self._braking = True
        self._standing.brake(stands)

    def _seed(self, pose: Pose) -> None:
        """Begin at rest, at a measured pose."""
        pose = Pose(pose.position, align_sign(pose.quaternion, self._config.reference))
        self._setpoint, self._braking = Setpoint(pose), False
        self._standing.seed(pose)

    def _begin_anew(self, pose: Pose) -> None:
        """Begin where the arm is; of a stop, only where the setpoint before may have left it."""
        stopped = self.state in LATCHED
        if stopped and not (self._last and self._standing.is_behind(pose, self._last.pose)):
            return  # nothing is published: the arm holds by itself
        self._seed(pose)
        if stopped:
            self._standing.rest(pose, self.state, self._ticked_s)

    def _lose_track(self, now_s: float) -> None:
        """The guard slept for so long that the arm holds by itself: begin where it is."""
        self.counts["late tick"] += 1
        self._awake_s = now_s
        if self._standing.origin is not None and self._setpoint is not None:
            self._setpoint = Setpoint(self._setpoint.pose)  # a stop stays where it is
            return
        self._last, self._setpoint = self._setpoint or self._last, None
        if self.state in MOVING:
            self._lost_human |= self.state is GuardState.TELEOP
            self.state, self.cause = GuardState.HOLD, "the guard was late"

    def _disarmed(self) -> str:
        self.state, self.cause = GuardState.DISARMED, ""
        self._setpoint = self._last = self._gripper.opening = None
        self._standing.forget()
        self._following.begin()
        self._active = self._braking = self._disarming = self._acknowledged = False
        self._touched = False
        return "disarmed"

    def _refuse_unless_well(self, now_s: float) -> None:
        if refusal := self.refusal(now_s):
            raise BadInput(f"not now: {refusal}")
