"""The command line, one command a file; `main` parses the words and calls one of them.

`launch` builds descriptions for `ros2 launch` from the same list of processes. Only this room
prints.
"""
