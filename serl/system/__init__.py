"""The machine: files, settings in YAML, processes, sockets, the terminal, cameras, video files.

Independent of robots and learning. Read first `files` (atomic writes, bounded reads, locks), then
`settings_file` (YAML to checked pydantic models) and `supervisor` (child processes).
"""
