"""Plug-ins as people write them outside the tree: one file of each row of the table of docs/extend.md."""
