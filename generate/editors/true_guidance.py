"""True classifier-free guidance from a given step on, which no diffusers pipeline offers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from .caches import negative_pass

if TYPE_CHECKING:
    import torch

    Hooked = tuple[torch.Tensor, ...]


@contextmanager
def true_guidance(
    transformer: torch.nn.Module,
    controlnet: torch.nn.Module | None,
    negative: dict[str, torch.Tensor],
    *,
    scale: float,
    start: int,
    negative_control: bool,
) -> Iterator[None]:
    """Guide the next run of a Flux pipeline away from ``negative``, from step ``start`` on.

    Diffusers pipelines decide before the first step whether to run the negative prompt, in local
    variables out of reach of callbacks. So they are called without one, and a hook on the
    transformer does what the reference's loop does: from step ``start`` (counted from 0) it runs
    the transformer a second time with the negative embeddings and returns ``negative + scale *
    (positive - negative)``. Before that step, the transformer runs once.

    Parameters
    ----------
    transformer, controlnet : Module
        Those of the pipeline; ``controlnet`` may be None.
    negative : dict of Tensor
        ``encoder_hidden_states`` (1, T, D) and ``pooled_projections`` (1, P).
    scale : float
        Guidance scale; 1 disables it.
    start : int
        The first guided step.
    negative_control : bool
        Whether to run the ControlNet with the negative prompt too, as the reference does; if not,
        its output for the positive prompt is used for both, as in diffusers.
    """
    if scale == 1:
        yield
        return
    step = 0
    control_call: tuple[torch.nn.Module, dict[str, Any]] | None = None

    def with_negative(kwargs: dict[str, Any]) -> dict[str, Any]:
        hidden = kwargs["hidden_states"]
        return kwargs | {
            name: value.to(hidden.device, hidden.dtype).expand(len(hidden), *value.shape[1:])
            for name, value in negative.items()
        }

    def remember(module: torch.nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        nonlocal control_call
        control_call = module, kwargs

    def guide(
        module: torch.nn.Module, args: Any, kwargs: dict[str, Any], output: Hooked
    ) -> Hooked | None:
        nonlocal step
        step += 1
        if step <= start:
            return None
        negative_kwargs = with_negative(kwargs)
        if negative_control and control_call is not None:
            net, control_kwargs = control_call
            blocks, single_blocks = net.forward(**with_negative(control_kwargs))
            negative_kwargs |= {
                "controlnet_block_samples": blocks,
                "controlnet_single_block_samples": single_blocks,
            }
        with negative_pass(module, hooks):
            # calling the module itself would run this hook again
            away = module.forward(**negative_kwargs)[0]
        return (away + scale * (output[0] - away), *output[1:])

    with ExitStack() as hooks:
        if controlnet is not None:
            handle = controlnet.register_forward_hook(remember, with_kwargs=True)
            hooks.callback(handle.remove)
        handle = transformer.register_forward_hook(guide, with_kwargs=True)
        hooks.callback(handle.remove)
        yield
