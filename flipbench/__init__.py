"""Answer-flipped benchmarks, controlled contamination, and detectors with honest statistics.

``import flipbench as fb`` is quick; what a function needs is imported when it is called.
"""

import os

__version__ = "0.1.0"

from flipbench.api import *  # noqa: F403
from flipbench.api import __all__ as __all__

_GONE = {
    **{
        name: f"flipbench.Experiment(config).{name}()"
        for name in ("contaminate", "evaluate", "filter", "generate", "run")
    },
    "detectable_gap": "flipbench.power(changed=…, n_pairs=…)",
    "pairs_needed": "flipbench.power(changed=…, gap=…)",
    "hint_ablation": "flipbench.reasoning(config)",
    "judge_reasoning": "flipbench.reasoning(cases, judge=…, out=…)",
}
"""Functions of earlier versions, and what to call instead."""


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


def __getattr__(name: str) -> object:
    instead = f"; use {_GONE[name]}" if name in _GONE else ""
    raise AttributeError(f"module 'flipbench' has no attribute {name!r}{instead}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


_check_links()
