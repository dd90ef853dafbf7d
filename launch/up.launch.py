"""The graph of a YAML file: ros2 launch serl up.launch.py file:=cell.yaml."""

from serl.cli.launch import describe_file as generate_launch_description

__all__ = ["generate_launch_description"]
