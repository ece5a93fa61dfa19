"""The commands of ``flipbench``: what is printed after each job of ``api``, and nothing else.

Reading order: ``derive`` (arguments, options and help of a function), ``app`` (a function becomes a
command), ``printing``, then the commands by panel of ``--help``: ``whole`` (demo, run),
``variants``, ``models``. The order of the commands is that of these files.

To add a command, write a function in ``api``, and decorate with ``app.command`` what prints its
result. No option is written here, but those of printing: keyword-only parameters of what prints.
"""
