"""An actor that joins a run: ros2 launch serl actor.launch.py run:=FOLDER name:=actor1."""

from serl.cli.launch import describe_actor as generate_launch_description

__all__ = ["generate_launch_description"]
