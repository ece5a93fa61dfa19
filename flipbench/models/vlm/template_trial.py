"""Render a chat template once, in a process of its own: ``python template_trial.py < JSON``.

It imports nothing of flipbench or transformers, so that it starts in a fraction of a second.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

BYTES, SECONDS = 512_000_000, 10
"""Memory beside the interpreter's, and processor time, that a template may take."""

TOO_LARGE = 3
"""Exit status where memory does not suffice."""


class _Generation(jinja2.ext.Extension):
    """The tag of transformers that marks replies."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        """Return the tag's body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _limit() -> None:
    try:
        import resource
    except ModuleNotFoundError:  # not a Unix: only the parent's deadline holds
        return
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    try:
        pages = int(open("/proc/self/statm").read().split()[0])
    except OSError:
        pages = 0
    n_bytes = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def main() -> None:
    """Print the length of the longest chat; templates that raise an error are short."""
    trial = json.load(sys.stdin)
    _limit()
    try:
        sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        sandbox.filters["tojson"] = lambda value, **options: json.dumps(value, **options)
        sandbox.globals |= {"raise_exception": _raise, "strftime_now": lambda _: "now"}
        template = sandbox.from_string(trial["template"])
        longest = 0
        for chat in trial["chats"]:
            try:
                longest = max(longest, len(template.render(**trial["tokens"], **chat)))
            except MemoryError:
                raise
            except Exception:  # which the caller reports when it uses the template
                continue
        print(longest)
    except MemoryError:
        sys.exit(TOO_LARGE)
    except Exception:  # as above
        print(0)


if __name__ == "__main__":
    main()
