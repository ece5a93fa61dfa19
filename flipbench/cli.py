"""The command line: ``flipbench --help``."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import warnings
from collections.abc import Callable

from flipbench.streams import (
    PrintableFormatter,
    flush_output,
    open_closed_streams,
    outlive_readers,
    print_traceback,
    printable_warning,
)

open_closed_streams()  # before an import opens a file
sys.excepthook = print_traceback  # before typer, which passes errors on to what it finds here
try:
    from flipbench.commands import whole, variants, models  # noqa: I001  # the order of --help
    from flipbench.commands.app import app
    from flipbench.commands.printing import say_error
    from flipbench.core.errors import FlipbenchError
    from flipbench.core.processes import is_main
except KeyboardInterrupt:  # Ctrl-C before `main` can say anything
    raise SystemExit(130) from None

__all__ = ["app", "main", "models", "variants", "whole"]


def main(commands: Callable[[], object] | None = None) -> None:
    """Run the command line, or a study's; errors are one message and exit status 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # for other processes: Python's resource tracker counts what killed ones left
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    atexit.register(gc.freeze)  # no search for cycles in large libraries: it takes a second
    outlive_readers()
    logging.basicConfig(level=logging.INFO if sys.stderr.isatty() else logging.WARNING)
    warnings.formatwarning = printable_warning
    for handler in logging.getLogger().handlers:
        handler.setFormatter(PrintableFormatter("%(message)s"))
    for name in ("httpx", "httpx2", "transformers", "datasets", "accelerate", "faiss"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        try:
            (commands or app)()
        finally:
            flush_output()
    except FlipbenchError as error:
        who = "flipbench" if is_main() else f"flipbench (process {os.environ['RANK']})"
        say_error(f"{who}: {error}")
        raise SystemExit(2) from error
    except OSError as error:
        if error.errno is None:  # a library's own error, such as of a connection
            raise
        place = error.filename2 or error.filename  # of a copy, the file that is written
        where = f"{place}: " if place else ""
        say_error(
            f"flipbench: {where}cannot be read or written ({error.strerror}); finished"
            " work is safe, run the same command again when this is mended"
        )
        raise SystemExit(2) from error
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != 130:  # typer's status for an interrupt
            raise
        say_error("flipbench: stopped; the same command continues")
        raise SystemExit(130) from None


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]  # `python -m` adds the current folder, whose modules are not searched
    main()
