"""The gain confound: models that have seen no item look contaminated beside each other.

Reading order: ``simulation`` (cohorts of models that differ in gain alone, and the rules on them).
``python -m studies.confound --figure confound.png`` prints the tables and draws them.
"""
