"""Access control: only this page, under a local host name or with the token."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware that refuses other origins, foreign host names and unauthenticated requests.

    Without a token, only loopback host names are accepted, so that no web page can reach the server
    through DNS rebinding. A token is given once in the query and then stored in a cookie that
    scripts and other sites cannot use.

    Parameters
    ----------
    app : ASGI application
        The application to protect.
    token : str or None
        If given, required for every request.
    """

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self.app, self.token = app, token
        digest = hashlib.sha256((token or "").encode()).hexdigest()
        self._cookie = f"flipbench-{digest[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        has_token = self._is_token(request.query_params.get("token"))
        refusal = self._refusal(request, has_token)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = dict(_HEADERS)
                if has_token and not refusal:
                    extra["set-cookie"] = (
                        f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                    )
                pairs = [(name.encode(), value.encode()) for name, value in extra.items()]
                message["headers"] = [*message.get("headers", []), *pairs]
            await send(message)

        if refusal:
            status, why = refusal
            await PlainTextResponse(why + "\n", status)(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

    def _refusal(self, request: Request, has_token: bool) -> tuple[int, str] | None:
        if not _same_origin(request):
            return 403, "refused: the request comes from another origin"
        if self.token is None:
            name = _host(request)
            if not is_loopback(name):
                return 403, f"refused: {name!r} is not a name of this machine; use localhost"
        elif not has_token and not self._is_token(request.cookies.get(self._cookie)):
            return 401, "refused: open the address with the token that flipbench printed"
        return None

    def _is_token(self, value: str | None) -> bool:
        if self.token is None or value is None:
            return False
        return secrets.compare_digest(value.encode(), self.token.encode())


def _host(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _same_origin(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:  # set by the browser; scripts cannot change it
        followed_link = (
            request.method == "GET"
            and request.url.path == "/"
            and request.headers.get("sec-fetch-mode") == "navigate"
            and request.headers.get("sec-fetch-dest") == "document"
        )
        return site in ("same-origin", "none") or followed_link
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")
