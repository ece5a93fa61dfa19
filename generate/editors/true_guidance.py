"""True classifier-free guidance from a step on, which no pipeline of diffusers offers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

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

    The pipelines decide once, before the first step, whether they run the negative prompt, in
    local variables that no callback reaches. So they are called without one, and a hook on the
    transformer does what the reference's loop does: from step ``start`` (counted from 0) it runs
    the transformer a second time with the negative embeddings and returns ``negative + scale *
    (positive - negative)``. Before that step nothing is run twice.

    Parameters
    ----------
    transformer, controlnet : Module
        Of the pipeline; ``controlnet`` may be None.
    negative : dict of Tensor
        ``encoder_hidden_states`` (1, T, D) and ``pooled_projections`` (1, P).
    scale : float
        1 switches it off.
    start : int
        The first guided step.
    negative_control : bool
        Whether the ControlNet is run with the negative prompt too, as in the reference; without,
        its answer to the positive prompt is used for both, as diffusers does.
    """
    if scale == 1:
        yield
        return
    step = 0
    control_call: tuple[torch.nn.Module, dict[str, Any]] | None = None

    def instead(kwargs: dict[str, Any]) -> dict[str, Any]:
        n_pictures = kwargs["hidden_states"].shape[0]
        like = kwargs["hidden_states"]
        spread = {
            name: value.to(like.device, like.dtype).expand(n_pictures, *value.shape[1:])
            for name, value in negative.items()
        }
        return {**kwargs, **spread}

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
        again = instead(kwargs)
        if negative_control and control_call is not None:
            net, called = control_call
            blocks, single_blocks = net.forward(**instead(called))
            again |= {
                "controlnet_block_samples": blocks,
                "controlnet_single_block_samples": single_blocks,
            }
        away = module.forward(**again)[0]  # forward: a call would come back into this hook
        return (away + scale * (output[0] - away), *output[1:])

    with ExitStack() as hooks:
        if controlnet is not None:
            handle = controlnet.register_forward_hook(remember, with_kwargs=True)
            hooks.callback(handle.remove)
        handle = transformer.register_forward_hook(guide, with_kwargs=True)
        hooks.callback(handle.remove)
        yield
