"""The audit of a configured benchmark: `audit.py` (all of it), `corpus.py`, `cohort.py`.

`audit.py` runs the hygiene checks and gathers the sections of the page; `corpus.py` compares the
benchmark's pictures with a training corpus, `cohort.py` asks several models for the right answers.
"""
