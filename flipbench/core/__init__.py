"""The foundation: records, run directories, stages, images, errors, randomness.

Reading order: ``records`` (the shared vocabulary), ``paired`` (a paired benchmark), ``run`` (a run
directory), ``stage`` (run and resume a stage), ``images`` (with ``derived_images`` and
``image_similarity``), ``errors``, ``randomness``; ``locks``
and ``processes`` for several processes at one run.

This room imports nothing else of flipbench, and no model, prompt or statistic belongs here. To add
a kind of record, add a class to ``records``. Changing a field in ``made_of`` changes ids, so that
existing runs are redone.
"""
