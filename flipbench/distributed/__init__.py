"""A run's work on several processes or machines: workers, SLURM jobs, Ray actors.

Reading order: ``workers`` (processes that share a run's work), ``slurm`` (the same as jobs of an
array), ``cluster`` (a stage as actors on a Ray cluster; functions as its tasks).

Placement, restarts and transport are the engines'. What a stage does stays in its room; with Ray,
only the process that started the command writes records. A new engine is one file that implements
`flipbench.core.stage.Executor` (batches of a stage) or `flipbench.distributed.workers.Launcher`
(whole workers); ``api`` chooses it.
"""
