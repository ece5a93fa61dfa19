"""A configuration as typed data: YAML in, frozen models out, unknown keys refused.

Reading order: ``experiment`` (the whole configuration, ``extends:``, ``key=value`` overrides), then
its parts: ``training``, ``policy``, ``chat``, ``served_model``, ``audit``.

Settings only: nothing here loads a model or imports a stage. What a configuration builds is
assembled in ``pipelines``. To add a key, add a field with a default and a description to the part
it belongs to; a renamed key keeps a reader for the old name.
"""
