"""How results are shown, for reports, audits and raters alike.

Reading order: ``formats`` (one way to print a percentage, a gap, a p-value), ``text_tables`` (small
tables as Markdown and CSV), ``contact_sheet`` (flipped pairs as one image).

Nothing is computed here that a decision depends on, and no stage is imported. To add a format,
write one function for it here and use it in every table, figure and page.
"""
