"""Command that updates the tables in `docs/faults.md`: python -m tests.faults."""

from __future__ import annotations

from .table import PAGE, page

PAGE.write_text(page())
