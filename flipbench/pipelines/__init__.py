"""A configured experiment, stage by stage: the only code that knows every room.

Reading order: ``loop`` (all stages in order), ``experiment`` (configuration + run directory), then
one stage each: ``pairs`` (generate and filter), ``contamination``, ``evaluation``; ``detection``
(``flipbench detect``), ``auditing``, ``raters``, ``training_exports``, ``demo``. ``backends`` and
``detectors`` build the parts that a configuration names.

Wiring only: computations belong in a stage, printing in ``commands``. To add a step, write a
function of the experiment's parts here and a command for it.
"""
