"""A learner and its actors: ros2 launch serl train.launch.py task:=pick_cube."""

from serl.cli.launch import describe_training as generate_launch_description

__all__ = ["generate_launch_description"]
