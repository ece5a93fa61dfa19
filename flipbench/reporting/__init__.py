"""How results are shown: one table, one rate, one page, for every stage alike.

`formats` prints numbers, `tables` has the one Table, `writers` writes it as Markdown, LaTeX and
CSV,
`pages` makes HTML from ``templates/`` (tokens, style and macros that all pages share). Nothing here
knows what a detector or a judge is: a stage builds its tables and hands them over.
"""
