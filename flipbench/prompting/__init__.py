"""The text a model is asked with, and how its reply is read.

Reading order: ``prompts`` (one template for training and evaluation), ``parsing`` (which option a
reply names; an ambiguous reply is unparsed, never guessed).

Imports ``core`` only; chat prompts of captioners and judges are text files beside their users. To
add a parsing rule, add it at its place in the order in ``parsing``, with examples that fail without
it: every later rule sees only the replies that it leaves open.
"""
