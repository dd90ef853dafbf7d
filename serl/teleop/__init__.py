"""Devices and people: everything that can take over from a policy.

Public: `Device` (the contract of a device), `Operator` (a device with its mapping as a `Teleop`),
`TeleopMux` (one of several drives), `HumanInput` (events of a person), `Stop`, `ScriptedHuman`.
Read first `serl.intervention`, then `device`, `mapping`, `operator`, `mux`.
"""
