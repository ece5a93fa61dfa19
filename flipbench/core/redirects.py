"""Redirects to another server are refused: it would get the key and the pictures, and answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request

from flipbench.core.errors import PrerequisiteError

_PORTS = {"http": 80, "https": 443}


def leads_elsewhere(url: str, location: str, setting: str) -> str:
    """Return why a redirect is not followed; empty if it stays on the server.

    An address that differs in host or port is another server; from http to https, each on its own
    port, it is the same one.

    Parameters
    ----------
    url, location : str
        What was asked for, and what the server's reply names instead.
    setting : str
        The setting that holds the server's address, for the message.

    >>> leads_elsewhere("http://a/v1", "https://a/v1/", "url")
    ''
    >>> leads_elsewhere("http://a:8000/v1", "http://b/v1", "url")[:45]
    'a:8000 redirects to b, which is another serve'
    """
    try:
        current, target = urlsplit(url), urlsplit(urljoin(url, location))
        if _server(current) == _server(target):
            return ""
        upgraded = current.scheme == "http" and target.scheme == "https"
        if upgraded and current.hostname == target.hostname and _is_default(current, target):
            return ""
        name = _shown(target)
    except ValueError:  # no address at all
        current, name = urlsplit(url), "an invalid address"
    return (
        f"{_shown(current)} redirects to {name}, which is another server and is not asked: it would"
        f" get what the first one gets; set {setting} to it if you trust it"
    )


class SameServer(HTTPRedirectHandler):
    """Follows redirects on the server, and refuses those to another one."""

    def __init__(self, setting: str) -> None:
        self.setting = setting

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Return the next request.

        Raises
        ------
        PrerequisiteError
            If another server would get it.
        """
        if refusal := leads_elsewhere(req.full_url, newurl, self.setting):
            raise PrerequisiteError(refusal)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _server(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or _PORTS.get(url.scheme)


def _is_default(*urls: SplitResult) -> bool:
    return all((url.port or _PORTS[url.scheme]) == _PORTS[url.scheme] for url in urls)


def _shown(url: SplitResult) -> str:
    """Return host and port in ASCII: the name comes from a server."""
    port = f":{url.port}" if url.port else ""
    return ascii(f"{url.hostname or ''}{port}")[1:-1][:200]
