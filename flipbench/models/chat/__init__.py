"""Chat models as helpers: they caption, judge, reword and read replies.

Reading order: ``messages`` (requests and replies), ``prompt_files`` (versioned prompts), ``api``
(any OpenAI-compatible server), ``batch_api`` with ``batch_state`` (the Batch API, resumable),
``cost``, ``rate_limit``, then two users of them: ``answer_judge`` and ``rewording``.

Models under test are in ``models.vlm``. To add a server's peculiarity, add it to the known models
in ``config.chat``; to add a way of asking, implement ``Chat`` in ``messages``.
"""
