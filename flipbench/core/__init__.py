"""What everything is built on: records, run directories, stages, images, errors, randomness.

Reading order: ``records`` (the shared vocabulary), ``record_base`` (frozen, id = hash of what made
it), ``paired`` (a paired benchmark), ``run`` (a run directory), ``stage`` (run a stage, resume it),
``images``, ``errors``, ``randomness``; for several processes ``workers`` and ``processes``.

This room imports nothing else of flipbench, and no model, prompt or statistic belongs here. A new
kind of record is a class in ``records``; changing a field changes ids, so existing runs would be
redone.
"""
