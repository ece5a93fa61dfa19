"""A process that the tests kill: ``batch_worker.py URL FOLDER N`` asks N requests in a batch."""

from __future__ import annotations

import sys
from pathlib import Path

from flipbench.config.chat import ChatSpec
from flipbench.core.images import ImageStore
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.batch_api import BatchAPI
from flipbench.models.chat.messages import ChatRequest

if __name__ == "__main__":
    url, folder, n = sys.argv[1:]
    api = ChatAPI(ChatSpec(model="gpt-4o-2024-08-06", base_url=url, max_retries=1))
    batch = BatchAPI(api, Path(folder))
    batch.poll_seconds = 0.05
    requests = [ChatRequest("Describe.", f"number {i}") for i in range(int(n))]
    batch.ask(requests, ImageStore(Path(folder)))
    print("done", flush=True)
