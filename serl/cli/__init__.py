"""The command line, one file per command; `main` parses the arguments and calls a command.

`launch` builds descriptions for `ros2 launch` from the same list of processes. Only this
package prints.
"""
