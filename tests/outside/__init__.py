"""Plug-ins from outside the tree: one file for each row of the table in docs/extend.md."""
