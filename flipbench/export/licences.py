"""Whether a source's licence allows sharing edited images."""

from __future__ import annotations

import re

_NO_DERIVATIVES = re.compile(r"(?:^|[\s_-])nd(?:[\s_-]|$)|no[\s-]?deriv", re.IGNORECASE)


def forbids_derivatives(licence: str) -> bool:
    """Return whether a licence forbids sharing adapted material.

    >>> forbids_derivatives("CC-BY-ND-4.0"), forbids_derivatives("cc-by-nc-nd-4.0")
    (True, True)
    >>> forbids_derivatives("CC BY-SA 4.0"), forbids_derivatives("")
    (False, False)
    """
    return _NO_DERIVATIVES.search(licence) is not None
