"""What was measured, and how: run from a checkout, part of no wheel.

``tiny_models`` (training of the shipped models, of clean lineages and of the tiny Flux),
``population`` (many clean models, contaminated in every known way; whom detectors catch),
``confound`` (models that differ in gain alone look contaminated),
``published`` (one paper's printed tables, recomputed). Run one with
``python -m studies.NAME`` in the repository's root; ``--help`` says what it takes.

A study may import all of ``flipbench``, and nothing in ``flipbench`` imports a study: what users
need for their own data belongs there. To add one, give it a folder here, a docstring that
says what it shows, and tests in ``tests/studies``.
"""
