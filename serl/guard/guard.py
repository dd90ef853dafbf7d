"""The guard: the only component that commands an arm, without ROS, clocks or learning.

The guard takes the actor's commands and the arm's measurements, each with the time of its arrival.
`tick`, called 100 times a second, returns the setpoint to publish. No input is trusted: late,
invalid or missing messages stop the arm. The process of the guard is `serl/ros/nodes/guard.py`.

Rules for an actor (all the numbers are in `GuardConfig`):

- DISARMED -> `arm` -> HOLD -> the heartbeat's mode, once heartbeats, commands and measurements are
  fresh. A missing one brings the guard back to HOLD; it resumes by itself when all are fresh again
  and the arm has come to rest. A refused command has the same effect, until the next valid one.
- From a person to a policy or a reset the arm rests first: see `Lease.release`.
- An actor can be replaced after 1 s of silence. While two actors send heartbeats, the arm holds.
- PROTECTIVE_STOP: `ack`, then `arm`. ESTOP: `ack`, then `reset`, then `arm`. Both need an arm at
  rest, without error, with fresh measurements; after them resets and persons move slowly for 10 s,
  or until a policy drives again. The first start (no latch file) is an ESTOP.
- JOINTS: one move of the joints home, without setpoints; see `serl.guard.joint_move`. It ends in
  HOLD: complete, or by any other mode or fault. Ask for another mode before the next move.
- A simulated arm that is placed elsewhere jumps: `disarm` before the jump, `arm` after it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from serl.errors import BadInput
from serl.geometry import align_sign
from serl.guard.checks import MessageInfo, check_command, far_outside, is_allowed, is_inside
from serl.guard.config import LATCHED, MOVING, RECOVERY_TICKS, GuardConfig, GuardState
from serl.guard.hold_point import HoldPoint
from serl.guard.inputs import FaultCounter, GripperCommand, Lease, MeasuredArm, MessageAge
from serl.guard.joint_move import JointMove
from serl.guard.latch import Latch
from serl.guard.monitors import FollowingMonitor
from serl.motion import Limits, Pose
from serl.setpoint import PROFILE_PERIOD_S, Setpoint, advance_setpoint, at_rest, brake_setpoint

__all__ = ["LATCHED", "MOVING", "Guard", "GuardConfig", "GuardState", "Latch", "MessageInfo"]

_DRIVEN = MOVING | {GuardState.JOINTS}
_FOLLOWING = _DRIVEN | {GuardState.HOLD}


class Guard:
    """The state machine between an actor and an arm; disarmed at first, or stopped by its latch.

    Attributes:
        state, cause: state of the guard, and the reason of a hold or a stop.
        lease: the active actor and the freshness of its heartbeat.
        measured: measurements and errors of the arm.
        joint_move: move of the joints home, with the trajectory to publish in this tick.
        counts: number of refusals and other incidents by reason.
        active: whether the guard was armed and not disarmed since: it drives or holds the arm.
    """

    def __init__(self, config: GuardConfig, latch: Latch | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.state, self.cause = latch or Latch()
        self._driver = GuardState.HOLD  # the last mode in which the arm was driven since `arm`
        self._config = config
        self._limits, self._slow = config.motion.limits, config.slow
        self.measured = MeasuredArm(config, self.counts)
        self.lease = Lease(config, self.counts)
        self._command = MessageAge("command", config.command_s, self.counts)
        self._gripper = GripperCommand(config, self.counts)
        self._not_finite = FaultCounter(3, "commands that are not finite")
        self._ticked_s = self._awake_s = -math.inf  # the latter: `arm`, or the last late tick
        self._following = FollowingMonitor(config)
        self._target: Pose | None = None
        self._setpoint: Setpoint | None = None
        self._last: Setpoint | None = None  # the last setpoint before a late tick
        self._hold_point = HoldPoint(config, self.measured)
        self.joint_move = JointMove(config, self.measured)
        self.active = self._braking = self._disarming = False
        self._recovery_ticks = 0  # of slow motion that are left
        self._acknowledged = self._touched = False  # the latter: contact in a stop, or as its cause

    @property
    def opening(self) -> float | None:
        """Commanded opening of the gripper: 1 open, 0 closed; None before the first since `arm`."""
        return self._gripper.opening

    @property
    def yields(self) -> bool:
        """Whether the controller is to be soft: contact was measured in this protective stop.

        It stays soft in an emergency stop that follows such a stop.
        """
        return self._touched and self.state in LATCHED

    @property
    def latch(self) -> Latch:
        """The latch to keep on disk for the present state."""
        if self.state in LATCHED:
            return Latch(self.state, self.cause)
        armed = self.state is not GuardState.DISARMED
        return Latch(GuardState.HOLD if armed else GuardState.DISARMED)

    @property
    def pace(self) -> Limits | None:
        """The limits for motion to the target, slow if required; None while braking or holding."""
        if self.state not in MOVING or self._braking or self._setpoint is None:
            return None
        slow = self.measured.is_slow or not is_inside(self._setpoint.pose, self._config)
        return self._slow if slow or self._recovery_ticks else self._limits

    @property
    def exerts(self) -> bool:
        """Whether the tool may exert its task's wrench: it follows a policy or a person."""
        episode = self.pace is not None and self.state is not GuardState.RESET
        return episode and not self._following.strays

    def heartbeat(self, text: str, info: MessageInfo) -> None:
        """Take a heartbeat "<lease> <mode> <count> <silence, ms>", sent at most 20 ms apart."""
        self.lease.receive(text, info)

    def command(self, values: Sequence[float], info: MessageInfo) -> None:
        """Take the target of the actor: x y z (m) and a quaternion xyzw; hold if it is refused."""
        self._note_not_finite(values, info)
        with self._command.receiving(info.now_s):
            self._target = check_command(values, info, self._config)
        if self._command.fault and self.state is not GuardState.JOINTS:
            self._hold(self._command.fault, info.now_s)

    def gripper(self, values: Sequence[float], info: MessageInfo) -> None:
        """Open (1) or close (0) the gripper; refused if late, too frequent, or while it holds."""
        self._note_not_finite(values, info)
        self._gripper.receive(values, info, self.state in MOVING)

    def pose(self, values: Sequence[float], info: MessageInfo) -> None:
        """Take the measured pose of the tool, base_T_tcp; stop an armed arm whose pose jumps."""
        self.measured.receive_pose(values, info)
        self._stop_if_armed(self.measured.jumps)

    def joints(self, values: Sequence[float], info: MessageInfo) -> None:
        """Take the measured joint angles (rad); stop an armed arm whose joints are in danger."""
        self.measured.receive_joints(values, info)
        self._stop_if_armed(self.measured.joints.danger)

    def wrench(self, values: Sequence[float], info: MessageInfo) -> None:
        """Take the wrench of the surroundings on the tool, force (N) then torque (Nm).

        A force or torque at its limit stops an armed arm.
        """
        self.measured.receive_wrench(values, info)
        if self.measured.touch:
            self._stop_if_armed(self.measured.touch)
            stopped = self.active and self.state is GuardState.PROTECTIVE_STOP
            self._touched |= stopped and not self.measured.rivals

    def set_rivals(self, rivals: str) -> None:
        """Set the description of nodes that publish measurements beside the arm's driver, or "".

        While there are any, an armed arm is stopped, a stopped arm does not give way, and no stop
        can be acknowledged.
        """
        if self.cause and rivals.startswith(self.cause):
            self.cause = rivals  # a name that is known only now
        self.measured.rivals = rivals
        self._stop_if_armed(rivals)

    def robot_error(self, text: str) -> None:
        """Take the error that the arm reports; empty for none.

        An error stops the arm; only the arm's own report of no error clears it.
        """
        self.measured.error = text
        if text:
            self.stop(f"the arm reports {text}")

    def stop(self, cause: str) -> None:
        """Begin a protective stop: brake and hold until a person acknowledges the stop."""
        if self.state not in LATCHED:
            self._latch(GuardState.PROTECTIVE_STOP, cause)

    def estop(self, cause: str) -> None:
        """Begin an emergency stop, from any state; a repeated one must be acknowledged again."""
        self._acknowledged = False
        if self.state is not GuardState.ESTOP:
            self._latch(GuardState.ESTOP, cause)

    def ack(self, now_s: float) -> str:
        """Acknowledge a stop for a person; this ends a protective stop. Return the next step.

        Raises:
            BadInput: nothing is stopped, or the cause is still there.
        """
        if self.state not in LATCHED:
            raise BadInput(f"nothing to acknowledge: the guard is in {self.state}")
        self._refuse_unless_well(now_s)
        if self.state is GuardState.ESTOP:
            self._acknowledged = True
            return "acknowledged; call reset next"
        self._recovery_ticks = RECOVERY_TICKS
        return self._finish_disarm()

    def reset(self, now_s: float) -> str:
        """End an acknowledged emergency stop; the guard is disarmed then.

        Raises:
            BadInput: there is no acknowledged emergency stop, or the cause is still there.
        """
        if self.state is not GuardState.ESTOP or not self._acknowledged:
            expected = "an acknowledged emergency stop"
            raise BadInput(f"nothing to reset: the guard is in {self.state}, expected {expected}")
        self._refuse_unless_well(now_s)
        self._recovery_ticks = RECOVERY_TICKS
        return self._finish_disarm()

    def arm(self, now_s: float) -> str:
        """Arm the guard: hold the arm at its present pose, ready to be driven.

        Raises:
            BadInput: the guard is not disarmed, or the arm is not well, at rest, and near its box.
        """
        if self.state is not GuardState.DISARMED:
            raise BadInput(f"cannot arm: the guard is in {self.state}, expected disarmed")
        self._refuse_unless_well(now_s)
        assert self.measured.pose is not None
        self._seed(self.measured.pose)
        self.state = self._driver = GuardState.HOLD
        self.cause, self.active, self._awake_s, self._ticked_s = "armed", True, now_s, now_s
        self.lease.lost_human = self._disarming = False
        self._target, self._command.received_s = None, -math.inf
        return "armed"

    def refusal(self, now_s: float) -> str:
        """Return why `ack`, `reset` or `arm` is refused now.

        Empty when nothing prevents the call that is due, or when no call is due.
        """
        if self.state in _FOLLOWING:
            return ""
        if trouble := self.measured.trouble(now_s):
            return trouble
        rest = self._setpoint or self._last  # the controller keeps a setpoint that was dropped
        if self.yields and rest and (away := self._hold_point.displacement(rest.pose)):
            return away
        if self.state is GuardState.DISARMED and self.measured.pose is not None:
            far = far_outside(self.measured.pose, self._config)
            return f"{far}: bring the arm there by hand" if far else ""
        is_driven = self.state in LATCHED and self.lease.has_person(now_s)
        return "a person drives; release the controls first" if is_driven else ""

    def disarm(self) -> str:
        """Brake, then disarm and publish nothing; a stop is not ended. Return the result."""
        if self.state in LATCHED:
            return f"stays in {self.state}"
        if self.state is GuardState.DISARMED:
            return "disarmed"
        self._disarming = True
        return "disarming"

    def tick(self, now_s: float) -> Setpoint | None:
        """Return the setpoint of this period of 10 ms; None when nothing is to be published."""
        late = now_s - self._ticked_s > self._config.heartbeat_s
        self._ticked_s = now_s
        if not self.active:
            return None
        if late:
            self._lose_track(now_s)
        self._watch_arm(now_s)
        if self.state in _FOLLOWING:
            self._decide(now_s)
        self.joint_move.advance(now_s)
        is_dropped = self._setpoint is None and not self.joint_move.is_active
        if is_dropped and (pose := self.measured.fresh_pose(now_s)) is not None:
            self._restore_setpoint(pose)
        if self.state is GuardState.DISARMED or self._setpoint is None:
            return None
        return self._advance(now_s)

    @property
    def _is_at_rest(self) -> bool:
        """Whether neither setpoint nor driver move the arm now."""
        rests = self._setpoint is None or (not self._braking and at_rest(self._setpoint))
        return rests and not self.joint_move.is_active

    def _decide(self, now_s: float) -> None:
        """Enter the state that the actor asks for, or hold."""
        silent_s = now_s - max(self.lease.received_s, self._awake_s)
        self._disarming |= silent_s > self._config.silent_s
        joints, mode = self.joint_move, self.lease.mode
        joints.over &= mode is GuardState.JOINTS
        if hindrance := self._hindrance(now_s):
            self._hold(hindrance, now_s)
            if self._disarming and self._is_at_rest:
                self._finish_disarm()
        elif self.state is GuardState.JOINTS and mode is not self.state:
            self._hold("the joint move was ended", now_s)
        elif mode is GuardState.JOINTS and mode is not self.state:
            self._hold("a joint move begins", now_s)
            if self._is_at_rest:
                joints.begin(now_s, self._recovery_ticks > 0)
                self.state, self._driver, self.cause = mode, mode, ""
                self._setpoint = self._last = None
        elif not self._braking and not joints.is_active:
            self.state, self._driver, self.cause = mode, mode, ""
            self.lease.lost_human &= self.state is not GuardState.TELEOP
            left = 0 if mode is GuardState.POLICY else self._recovery_ticks - 1
            self._recovery_ticks = max(0, left)

    def _hindrance(self, now_s: float) -> str:
        """Return why the arm has to hold; empty when it may move."""
        lease = self.lease
        if self._disarming:
            return "disarming"
        if hindrance := lease.hindrance(now_s) or self.measured.hindrance(now_s):
            return hindrance
        if lease.mode is GuardState.HOLD:
            return "the actor holds"
        if lease.mode is GuardState.JOINTS:
            hindrance = self.joint_move.hindrance(now_s)
        else:
            hindrance = self._command.hindrance(now_s) or self._following.hindrance(now_s)
            hindrance = hindrance or ("no command yet" if self._target is None else "")
        if hindrance := hindrance or lease.release(now_s):
            return hindrance
        return self.measured.joints.near if lease.mode is GuardState.POLICY else ""

    def _hold(self, cause: str, now_s: float) -> None:
        """Brake, and hold the arm at rest with this cause."""
        if self.state not in _FOLLOWING:
            return
        lease, drives = self.lease, self.state in _DRIVEN or self.lease.mode is GuardState.TELEOP
        fresh = lease.is_fresh(now_s) and self._command.is_fresh(now_s)
        lost = drives and (not fresh or lease.is_device_silent(now_s))
        lease.lost_human |= lost and self._driver is GuardState.TELEOP
        if self.state in _DRIVEN:
            self.counts[f"hold: {cause}"] += 1
            self.state, self._braking = GuardState.HOLD, True
            self._hold_point.brake()
            self.joint_move.stop()
        self.cause = cause

    def _advance(self, now_s: float) -> Setpoint:
        """Return the next setpoint: braking, holding, or moving to the target."""
        assert self._setpoint is not None
        before = self._setpoint
        if not self._braking:
            goal, limits = self._goal(now_s)
            after = advance_setpoint(before, goal, limits, PROFILE_PERIOD_S)
            if is_allowed(after, before.pose, self._config):
                self._setpoint = after
                return after
            self._braking = True  # a path that would leave the box, or enter one to keep out of
        self._setpoint = after = brake_setpoint(before, self._limits, PROFILE_PERIOD_S)
        if at_rest(after):
            self._braking = False
            self._hold_point.rest(after.pose, self.state, now_s)
        return after

    def _goal(self, now_s: float) -> tuple[Pose, Limits]:
        """Return the goal of the setpoint and the limits of the motion."""
        pose, pace = self.measured.fresh_pose(now_s), self.pace
        if pace is not None and pose is not None and self._target is not None:
            return self._following.goal(self._target, pose, pace), pace
        assert self._setpoint is not None
        setpoint = self._setpoint.pose
        return self._hold_point.find(setpoint, self.state, self.yields, now_s), self._slow

    def _watch_arm(self, now_s: float) -> None:
        """Stop an arm that is silent, or away from its setpoint, for longer than allowed."""
        pose, following = self.measured.fresh_pose(now_s), self._following
        silent_s = now_s - max(self.measured.received_s(), self._awake_s)
        is_silent = silent_s > self._config.lost_s
        self._stop_if_armed("the arm fell silent" if is_silent else self.joint_move.trouble(now_s))
        if pose is None or self._setpoint is None:
            following.begin()
            return
        following.watch(pose, self._setpoint.pose, now_s)
        if following.is_lost and self.state in LATCHED:
            if not self._hold_point.moved:
                self.counts["moved while stopped"] += 1
                self.cause += "; the arm was moved, or its pose is wrong"
            self._hold_point.moved = True
        elif following.is_lost:
            self.stop("the arm does not follow")
            self._hold_point.moved = True
        if self.state in MOVING:
            following.lead(pose, self._setpoint.pose, self.measured.is_pushing, now_s)

    def _note_not_finite(self, values: Sequence[float], info: MessageInfo) -> None:
        if not all(map(math.isfinite, values)):
            self._stop_if_armed(self._not_finite.add(info.now_s))

    def _stop_if_armed(self, cause: str) -> None:
        if cause and self.state in _FOLLOWING:
            self.stop(cause)

    def _latch(self, state: GuardState, cause: str) -> None:
        resting = self._setpoint is not None and at_rest(self._setpoint)
        is_idle = resting and self.state not in MOVING
        if self.state not in LATCHED:
            self._hold_point.forget()
        self.state, self.cause = state, cause or "no reason given"
        self.counts[str(state)] += 1
        self._acknowledged, self._braking = False, True
        self._hold_point.brake(is_idle)
        self.joint_move.stop()

    def _seed(self, pose: Pose) -> None:
        """Set the setpoint to a measured pose, at rest."""
        pose = Pose(pose.position, align_sign(pose.quaternion, self._config.reference))
        self._setpoint, self._braking = Setpoint(pose), False
        self._hold_point.seed(pose)

    def _restore_setpoint(self, pose: Pose) -> None:
        """Set a dropped setpoint to the measured pose; in a stop see `HoldPoint.restored`."""
        if self.state not in LATCHED:
            self._seed(pose)
            return
        rest = self._hold_point.restored(pose, self._last.pose if self._last else None)
        if rest is pose:
            self._seed(pose)
        elif rest is not None:
            self._setpoint, self._braking = Setpoint(rest), False
        if rest is not None:
            self._hold_point.rest(rest, self.state, self._ticked_s)

    def _lose_track(self, now_s: float) -> None:
        """Drop the setpoint after a late tick, when the arm holds by itself.

        The setpoint of a stop that came to rest is kept.
        """
        self.counts["late tick"] += 1
        self._awake_s = now_s
        if self._hold_point.origin is not None and self._setpoint is not None:
            self._setpoint = Setpoint(self._setpoint.pose)  # a stop stays where it is
            return
        self._last, self._setpoint = self._setpoint or self._last, None
        self.joint_move.stop()
        if self.state in _DRIVEN:
            self.lease.lost_human |= self.state is GuardState.TELEOP
            self.state, self.cause = GuardState.HOLD, "the guard was late"

    def _finish_disarm(self) -> str:
        self.state, self.cause = GuardState.DISARMED, ""
        self._setpoint = self._last = self._gripper.opening = None
        self._hold_point.forget()
        self._following.begin()
        self.joint_move = JointMove(self._config, self.measured)
        self.active = self._braking = self._disarming = self._acknowledged = self._touched = False
        return "disarmed"

    def _refuse_unless_well(self, now_s: float) -> None:
        if refusal := self.refusal(now_s):
            raise BadInput(f"not now: {refusal}")
