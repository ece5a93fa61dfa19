"""How results are shown, in reports, audits and rater statistics.

Reading order: ``formats`` (one way to print a percentage, a gap, a p-value), ``tables`` (the
Table, built from column specifications), ``writers`` (a table as Markdown, LaTeX and CSV),
``sections``, ``figures``, ``pages`` (HTML from ``templates/``: the tokens, style and macros that
all pages share; sentences and Markdown from texts beside the code), ``contact_sheet`` (pairs as
one image).

No decision depends on anything computed here, and nothing here knows what a detector or a judge
is: a stage builds its tables and passes them in. To add a format, write one function for it here
and use it in every table, figure and page.
"""
