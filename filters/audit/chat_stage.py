"""A stage that asks a chat model; replies are stored, so nothing is paid for twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import BaseModel

from flipbench.core.images import ImageStore
from flipbench.core.records import Probe, Record, Response, content_id
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest, ask_each


class ChatStage:
    """Ask a chat model probes without images; replies become responses.

    Parameters
    ----------
    chat : Chat
        `ChatAPI`, `BatchAPI` or `LocalChat`.
    images : ImageStore
        Passed on to the chat model; no image is shown.
    instruction : str
        The same for every probe.
    number : int
        Number of the repetition; each has its own responses.
    schema : type of pydantic model, optional
        Schema of the reply.
    read : callable, optional
        Returns the chosen option from (reply, probe), -1 for none.
    """

    record: type[Record] = Response

    def __init__(
        self,
        chat: Chat,
        images: ImageStore,
        instruction: str,
        *,
        number: int = 0,
        schema: type[BaseModel] | None = None,
        read: Callable[[str, Probe], int] | None = None,
    ) -> None:
        self.chat, self.images, self.instruction = chat, images, instruction
        self.number, self.schema, self.read = number, schema, read
        self.name = f"ask {chat.name}"
        form = schema.model_json_schema() if schema else None
        self.fingerprint = content_id("chat", chat.name, chat.settings, instruction, form, number)

    def id_of(self, probe: Probe) -> str:
        """Return the id of the response."""
        return Response.id_for(probe_id=probe.id, model_fingerprint=self.fingerprint)

    def subject(self, probe: Probe) -> str:
        """Return variant and item of the probe."""
        return f"{probe.variant} of item {probe.item_id}"

    def __call__(self, probes: Sequence[Probe]) -> list[Response | Exception]:
        """Ask a batch, in order."""
        return ask_each(self.chat, probes, self.images, self._request, self._response)

    def _request(self, probe: Probe) -> ChatRequest:
        return ChatRequest(
            instruction=self.instruction,
            text=probe.prompt,
            schema=self.schema,
            item_id=f"{probe.item_id} {self.number}",  # seeds a local model's sampling
        )

    def _response(self, probe: Probe, reply: ChatReply) -> Response:
        return Response(
            probe_id=probe.id,
            model_fingerprint=self.fingerprint,
            model=self.chat.name,
            text=reply.text,
            choice=self.read(reply.text, probe) if self.read else -1,
        )
