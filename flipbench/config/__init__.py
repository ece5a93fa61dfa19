"""Configurations as typed data: YAML in, frozen models out, unknown keys rejected.

Reading order: ``experiment`` (the whole configuration), ``loading`` (``extends:``, ``key=value``
overrides, renamed keys), then the parts: ``kinds`` (captioner, editor, judges), ``training``,
``policy``, ``chat``, ``local_models``, ``served_model``, ``audit``; ``starter`` is the template of
``flipbench init``.

Settings only: nothing here loads a model or imports a stage; ``api`` assembles what a
configuration describes. To add a key, add a field with a default to its part, and its meaning below
it; a renamed key is still read under its old name, see ``OLD_KEYS`` in ``loading``.
"""
