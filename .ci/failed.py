"""The tests that the last run of pytest has seen fail, one a line, for `pytest @FILE`."""

from __future__ import annotations

import json
import re
from pathlib import Path

FOUND = Path(".pytest_cache/v/cache/lastfailed")

_GROUP = re.compile(r"@[^\]]*$")  # appended by pytest-xdist; a parameter's "@" precedes a "]"


def main() -> None:
    """Print them; nothing when none failed."""
    for name in json.loads(FOUND.read_text()) if FOUND.exists() else {}:
        print(_GROUP.sub("", name))


if __name__ == "__main__":
    main()
