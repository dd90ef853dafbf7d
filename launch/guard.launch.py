"""The guard of an arm: ros2 launch serl guard.launch.py run:=FOLDER name:=arm."""

from serl.cli.launch import describe_guard as generate_launch_description

__all__ = ["generate_launch_description"]
