"""Answer-flipped benchmarks, controlled contamination, and detectors with honest statistics."""

import os

__version__ = "0.1.0"


def _check_links() -> None:
    """Refuse a checkout in which git wrote links as plain files, as on Windows by default."""
    package = os.path.dirname(os.path.abspath(__file__))
    links = ("configs", "contaminate", "evaluate", "filters", "generate")
    plain = [name for name in links if os.path.isfile(os.path.join(package, name))]
    if plain:
        files = " ".join(f"flipbench/{name}" for name in plain)
        raise ImportError(
            f"{files}: these are links to folders, but git wrote plain files. In the checkout run"
            f" 'git config core.symlinks true' and 'git checkout -- {files}' (on Windows with"
            " developer mode on), or install the wheel, which has no links"
        )


_check_links()
