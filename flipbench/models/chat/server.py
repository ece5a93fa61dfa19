"""A chat model behind a server, directly or through its Batch API."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from flipbench.config.chat import ChatSpec
from flipbench.core.images import ImageStore
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest


class ServerChat:
    """A chat model that connects on first use, so that a finished run needs no key.

    Parameters
    ----------
    spec : ChatSpec
        Model and server.
    folder : Path
        Folder for the state of Batch API requests.
    batch : bool
        Whether to use the Batch API.
    """

    def __init__(self, spec: ChatSpec, folder: Path, *, batch: bool = False) -> None:
        self.name, self.settings = spec.model, spec.settings
        self._spec, self._folder, self._batch = spec, folder, batch

    def ask(
        self, requests: Sequence[ChatRequest], images: ImageStore
    ) -> Sequence[ChatReply | Exception]:
        """Answer a batch, in order."""
        return self._chat.ask(requests, images)

    @cached_property
    def _chat(self) -> Chat:
        from flipbench.models.chat.api import ChatAPI
        from flipbench.models.chat.batch_api import BatchAPI

        api = ChatAPI(self._spec)
        return BatchAPI(api, self._folder) if self._batch else api
