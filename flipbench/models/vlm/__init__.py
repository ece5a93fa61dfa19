"""Models under test: Hugging Face checkpoints, and models behind a server.

Reading order: ``huggingface`` (answer probes in batches), ``checkpoints`` (path, hash, size, card),
``loading``, ``families`` and ``conversation`` (the format of prompts), ``chat_templates`` (tried in
a process of their own), ``processors`` (also padding instead of cropping, and what a crop hides),
``prefill`` (what prompts have in common is read once, as ``token_trees``), ``decoding``,
``scoring`` (token log-likelihoods in nats, hidden states); ``served`` (a model behind a server),
``local_chat`` (a checkpoint used as a chat model).

Nothing here knows detectors or benchmarks. To add a model family, add a row to ``families``; most
models with a chat template need none.
"""
