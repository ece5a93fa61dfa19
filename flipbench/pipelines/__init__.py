"""A configured experiment, stage by stage: the only code that knows every room.

Reading order: ``loop`` (all stages in order, and the demo), ``assembly`` (builds each configured
part once, with ``backends``, ``detectors``, ``grid`` and ``training_data``), then one file per
stage: ``generation``, ``filtering``, ``contamination``, ``evaluation``; ``detection`` (``flipbench
detect``), ``raters``, and ``audit``.

Wiring only: computations belong in a stage, printing in ``commands``. To add a step, write a
function of the parts it needs here, and a command that calls it.
"""
