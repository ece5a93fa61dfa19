"""How results are shown, for reports, audits and raters alike.

Reading order: ``formats`` (one way to print a percentage, a gap, a p-value), ``tables`` (the one
Table), ``writers`` (a table as Markdown, LaTeX and CSV), ``pages`` (HTML from ``templates/``: the
tokens, style and macros that all pages share), ``contact_sheet`` (flipped pairs as one image).

Nothing is computed here that a decision depends on, and nothing here knows what a detector or a
judge is: a stage builds its tables and hands them over. To add a format, write one function for it
here and use it in every table, figure and page.
"""
