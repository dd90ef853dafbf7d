"""A simulated arm: ros2 launch serl sim.launch.py task:=pick_cube."""

from serl.cli.launch import describe_simulation as generate_launch_description

__all__ = ["generate_launch_description"]
