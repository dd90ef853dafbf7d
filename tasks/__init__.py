"""Tasks, one per file, with their scenes."""
