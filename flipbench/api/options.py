"""How parameters of the functions here are written on the command line.

A command is derived from its function (`flipbench.commands.derive`): parameters that can be given
by position are arguments, keyword-only ones are options, and the help of each is the first
paragraph of its description. An `Option` in an annotation says what these do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

__all__ = ["Limit", "Option", "Progress", "Trust", "Workers"]


class Option:
    """How a parameter is written on the command line.

    Parameters
    ----------
    names : str
        Option names, by default the parameter's with dashes; none make it an argument where it can
        be given by position.
    metavar : str
        What the help shows for its value.
    min : int, optional
        The smallest number allowed.
    help : str
        The help, where the docstring's first paragraph is for Python.
    is_off : bool
        Whether the flag sets False.
    is_single : bool
        Whether a sequence is one value here, which the function splits.
    parse : callable, optional
        Makes the value, or each of several, of what was typed.
    """

    def __init__(
        self,
        *names: str,
        metavar: str | None = None,
        min: int | None = None,
        help: str = "",
        is_off: bool = False,
        is_single: bool = False,
        parse: Callable[[Any], Any] | None = None,
    ) -> None:
        self.names, self.metavar, self.min, self.help = names, metavar, min, help
        self.is_off, self.is_single, self.parse = is_off, is_single, parse


Limit = Annotated[int | None, Option("--limit", min=1, help="take the first N items only")]
Progress = Annotated[bool, Option("--quiet", "-q", is_off=True, help="no progress bars")]
Trust = Annotated[
    bool,
    Option(
        "--trust",
        help="run code and use servers that a configuration from somebody else's run names",
    ),
]
Workers = Annotated[int, Option("--workers", min=1)]
