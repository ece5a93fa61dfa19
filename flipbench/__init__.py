"""Answer-flipped benchmarks, controlled contamination, and detectors with honest statistics.

``import flipbench as fb`` is quick; what a function needs is imported when it is called.
"""

import importlib
import os
from types import ModuleType
from typing import Any

from flipbench import api
from flipbench.api import *  # noqa: F403
from flipbench.api import __all__ as __all__

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


class _Stage(ModuleType):
    """A stage's folder that can be called like the function of its name.

    ``flipbench.evaluate`` is both the package of the stage and the function
    ``flipbench.evaluate(config)``: importing anything of the folder would hide a plain function.
    """

    @property
    def _function(self) -> Any:
        return getattr(api, self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def __wrapped__(self) -> Any:
        return self._function

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return str(self._function.__doc__)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


_check_links()
for _name in ("contaminate", "evaluate", "generate"):
    importlib.import_module(f"flipbench.{_name}").__class__ = _Stage
