"""Chat models that caption, judge, reword and read replies.

Reading order: ``messages`` (requests and replies), ``prompt_files`` (versioned prompts), ``api``
(any OpenAI-compatible server; ``scrubbing`` keeps its key out of records and messages, ``bounds``
limits time, size and rate), ``batch_api`` (the Batch API, resumable), ``cost``, then three stages
that use them: ``answer_judge``, ``labels`` and ``rewording``.

Models under test are in ``models.vlm``. To support a model family with other parameters, add it to
``TRAITS`` in ``config.chat``; to add a backend, implement ``Chat`` from ``messages``.
"""
