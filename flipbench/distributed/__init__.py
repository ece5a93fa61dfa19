"""Work on many machines, by engines that exist: Ray for the stages of a run, SLURM for its workers.

Reading order: ``cluster`` (a stage as actors on a Ray cluster; functions as its tasks), ``slurm``
(the shares of ``--workers`` as jobs of an array).

Placement, restarts and transport are the engine's. What a stage does stays in its room, and records
are written by the process that started the command alone. A new engine is one file that implements
`flipbench.core.stage.Executor` (batches of a stage) or `flipbench.core.workers.Launcher` (whole
workers); ``pipelines`` chooses it.
"""
