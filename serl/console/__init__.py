"""The console: one web page to watch a run, take over, label and stop."""
