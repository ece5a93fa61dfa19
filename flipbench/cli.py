"""The command line: ``flipbench --help``."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
from collections.abc import Callable

try:
    from flipbench.commands import app, benchmarks, cards, demo, detect, models, people, stages
    from flipbench.core.errors import FlipbenchError
    from flipbench.core.workers import is_main
except KeyboardInterrupt:  # Ctrl-C before `main` can say anything
    raise SystemExit(130) from None

__all__ = ["app", "benchmarks", "cards", "demo", "detect", "main", "models", "people", "stages"]


def main(commands: Callable[[], object] | None = None) -> None:
    """Run the command line, or a study's; errors are one message and exit status 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # for other processes: Python's resource tracker counts what killed ones left
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    atexit.register(gc.freeze)  # no search for cycles in large libraries: it takes a second
    level = logging.INFO if sys.stderr.isatty() else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    for name in ("httpx", "httpx2", "transformers", "datasets", "accelerate", "faiss"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        (commands or app)()
    except FlipbenchError as error:
        who = "flipbench" if is_main() else f"flipbench (process {os.environ['RANK']})"
        print(f"{who}: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except OSError as error:
        if error.errno is None:  # a library's own error, such as of a connection
            raise
        place = error.filename2 or error.filename  # of a copy, the file that is written
        where = f"{place}: " if place else ""
        print(
            f"flipbench: {where}cannot be read or written ({error.strerror}); finished"
            " work is safe, run the same command again when this is mended",
            file=sys.stderr,
        )
        raise SystemExit(2) from error
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != 130:  # typer's status for an interrupt
            raise
        print("flipbench: stopped; the same command continues", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]  # `python -m` adds the current folder, whose modules are not searched
    main()
