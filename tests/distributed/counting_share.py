"""A share of some work that continues: it appends 12 numbers to a file, or ends as it is told."""

from __future__ import annotations

import sys
import time
from pathlib import Path

LAST = 12


def main() -> None:
    path, how = Path(sys.argv[1]), sys.argv[2]
    if how in ("1", "2"):
        raise SystemExit(int(how))
    if how == "raises":
        raise KeyError("this share")
    for number in range(len(path.read_text().split()) if path.exists() else 0, LAST):
        with path.open("a") as file:
            file.write(f"{number}\n")
        time.sleep(0.15 if how == "slowly" else 0)


if __name__ == "__main__":
    main()
