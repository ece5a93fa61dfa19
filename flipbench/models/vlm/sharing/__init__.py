"""What prompts have in common is read once.

``prefix`` reads pictures and texts and hands on what was read, ``token_trees`` (texts as trees, and
batches of about equal cost), ``cache`` (keys and values, to which tokens are added without a copy).

Nothing here knows probes, prompts or families; a model is any decoder of transformers that takes a
mask for each pair of tokens.
"""
