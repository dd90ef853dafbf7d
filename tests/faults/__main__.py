"""Brings the tables in `docs/faults.md` up to date: python -m tests.faults."""

from __future__ import annotations

from .table import PAGE, page

PAGE.write_text(page())
