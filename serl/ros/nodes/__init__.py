"""One process a file: `python -m serl.ros.nodes.<name>`."""
