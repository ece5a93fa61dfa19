"""A population of models of known history: every kind of contamination, on many clean lineages.

Reading order: ``settings`` (the configuration: lineages, kinds, phases, conditions), ``conditions``
(other perturbed pictures), ``unit`` (one kind on one lineage: train, ask, score), ``study`` (all
units, in order, by several workers). Results are two parquet tables, which
``flipbench validate`` reads. To add a kind, add it to the configuration.
"""
