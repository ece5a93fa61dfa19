"""Whether the Hugging Face hub can be reached; without it, the cache is used at once."""

from __future__ import annotations

import logging
import os
import socket
import sys
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies

log = logging.getLogger(__name__)
_SECONDS = 3.0


@cache
def check_hub() -> None:
    """Switch to the cache alone if the hub cannot be reached; asked once per process.

    Otherwise its client tries each file again for half a minute, with a warning for each try.
    Behind a proxy, nothing is asked. Processes started from this one do the same.
    """
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    port = address.port or (443 if address.scheme == "https" else 80)
    if constants.HF_HUB_OFFLINE or address.scheme in getproxies() or not address.hostname:
        return
    try:
        socket.create_connection((address.hostname, port), _SECONDS).close()
    except OSError as error:
        log.warning(
            "%s cannot be reached (%s); using what is in the cache only", address.hostname, error
        )
        constants.HF_HUB_OFFLINE = True
        os.environ["HF_HUB_OFFLINE"] = "1"
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True
