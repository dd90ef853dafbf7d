"""Devices that a person drives with, one a file; all implement `serl.intervention.Teleop`."""
