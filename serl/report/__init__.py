"""Pages, plots, films and terminal panels for people.

Public: `write_report` (`report`), `Display` (the live panel), `ProgressReader`, `film`, `review`.
Nothing below depends on this room.
"""
