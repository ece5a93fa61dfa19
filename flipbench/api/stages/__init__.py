"""The stages of a configured experiment, and what builds their parts; it knows every room.

Reading order: ``assembly`` (builds each configured part once, with ``backends``, ``detectors``,
``grid`` and ``training_data``), then one file per stage: ``generation`` (with ``attempts``,
``existing_pairs`` and ``preview``), ``filtering``, ``contamination``, ``evaluation`` (``loop`` runs
all of them); ``examination`` (models asked about pairs, for a grid and for ``detection``),
``reasoning``, ``raters`` and ``audit``. ``phases`` and ``answering`` are for dry runs: what models
on this machine take. ``results`` are what stages return, which ``display`` shows.

Wiring only: computations belong in a stage folder, signatures in ``api``, printing in ``commands``.
To add a step, write a function of an `Assembly` here, and call it from ``api``.
"""
