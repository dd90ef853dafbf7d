"""The processes of a run, one per module: `python -m serl.ros.nodes.<name>`."""
