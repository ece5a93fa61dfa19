"""The prompts for models under test, and the parsing of their replies.

Reading order: ``prompts`` (one template for training and evaluation), ``wrappers`` (where a reply's
answer stands: the marks around reasoning, answers and turns), ``parsing`` (which option a reply
names; an ambiguous reply is unparsed, never guessed).

Imports ``core`` only; the chat prompts of captioners and judges are text files in their rooms. To
add a parsing rule, insert it into the order in ``parsing`` with examples that fail without it:
later rules see only the replies that earlier ones leave undecided.
"""
