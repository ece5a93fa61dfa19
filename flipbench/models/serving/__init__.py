"""Model servers that flipbench starts itself, asks, and stops: vLLM.

Reading order: ``keeper`` (a small program that ends a server with the process that started it),
``vllm`` (its command line and adapters; start, wait until it answers, stop, log; one server at a
time), ``managed`` (a checkpoint that answers probes through such a server).

What is asked over HTTP, and what becomes of the replies, stays in ``models/vlm/served``. vLLM lives
in an environment of its own and is never imported. To add an engine, write a file like ``vllm``.
"""
