"""Checks between a command and an arm: pure Python, with clocks and measurements passed in.

Public: `Guard` and `GuardConfig`, `Latch`, `CameraMonitor`. Read in this order: `config` (limits
and states), `guard` (the state machine), `checks` (may a setpoint be sent), `monitors` (does the
arm do what it was sent), `inputs`, `latch`, `camera_monitor`. The process around it is
`serl.ros.nodes.guard`.
"""
