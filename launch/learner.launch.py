"""A learner alone: ros2 launch serl learner.launch.py task:=pick_cube."""

from serl.cli.launch import describe_learner as generate_launch_description

__all__ = ["generate_launch_description"]
