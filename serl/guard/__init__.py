"""Checks between a command and an arm: pure Python, with clocks and measurements passed in.

Public: `Guard` and `GuardConfig`, `Latch`, `CameraMonitor`. Read in this order: `config` (limits
and states), `guard` (the state machine), `checks` (whether a setpoint may be sent), `monitors`
(whether the arm follows its setpoint), `inputs`, `latch`, `camera_monitor`. The process around the
guard is `serl.ros.nodes.guard`.
"""
