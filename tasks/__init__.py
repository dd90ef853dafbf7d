"""Tasks, one a file, with their scenes."""
