"""Teleoperation: devices and operators that can take over from a policy.

Public: `Device` (the contract of a device), `Operator` (a device with its mapping as a `Teleop`),
`TeleopMux` (arbitrates between operators), `HumanInput` (operator events), `Stop`, `ScriptedHuman`.
Read first `serl.intervention`, then `device`, `mapping`, `operator`, `mux`.
"""
