"""A drafter's parameters as one flat buffer: one exchange, one clip and one optimizer call for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, isfinite, pi

import torch
from torch import Tensor, nn

from dflash.errors import TrainerError

_ALIGN = 64
"""Elements: every tensor starts at a multiple of it, so that kernels compiled for aligned inputs stay valid."""
_STATISTICS = 8


@dataclass(frozen=True)
class OptimizerConfig:
    """Keys of [optimizer]; the defaults are the paper's."""

    learning_rate: float = 6e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    """Largest norm of the gradient; 0 switches clipping off."""
    warmup_ratio: float = 0.04
    final_ratio: float = 0.0
    """Learning rate at the end, as a share of the peak, on a cosine."""


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Rate of the 0-based `step`: linear warm-up, then a cosine down to final_ratio of the peak."""
    warmup = max(1, round(config.warmup_ratio * steps))
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return config.learning_rate * (config.final_ratio + (1 - config.final_ratio) * (1 + cos(pi * done)) / 2)


class FlatParameters:
    """Moves a module's parameters into one buffer and keeps float32 masters, gradients and moments beside it.

    With a compute dtype of float32 (or float64, for tests) the module's parameters are views of the masters themselves;
    with bfloat16 they are views of a copy that `step` refreshes. `exchange_buffer` holds the gradients and, behind
    them, a few sums, so that one reduction carries both.
    """

    def __init__(self, module: nn.Module, compute: torch.dtype, config: OptimizerConfig) -> None:
        self._config = config
        self._slots: dict[str, tuple[int, torch.Size]] = {}
        end = 0
        named = dict(module.named_parameters())
        for name, parameter in named.items():
            self._slots[name] = (end, parameter.shape)
            end += -(-parameter.numel() // _ALIGN) * _ALIGN
        self._size = end
        wide = torch.promote_types(compute, torch.float32)
        device = next(iter(named.values())).device
        self.masters = nn.Parameter(torch.zeros(end, dtype=wide, device=device))
        self.exchange_buffer = torch.zeros(end + _STATISTICS, dtype=wide, device=device)
        self.statistics = self.exchange_buffer[end:]
        self.masters.grad = self.exchange_buffer[:end]
        same = compute == wide
        self._compute = self.masters.detach() if same else torch.zeros(end, dtype=compute, device=device)
        self._gradients = self.masters.grad if same else torch.zeros(end, dtype=compute, device=device)
        for name, parameter in named.items():
            self._view(self.masters.detach(), name).copy_(parameter.detach())
            parameter.data = self._view(self._compute, name)
            parameter.grad = self._view(self._gradients, name)
        self._refresh()
        self._optimizer = torch.optim.AdamW(
            [self.masters],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def _view(self, buffer: Tensor, name: str) -> Tensor:
        start, shape = self._slots[name]
        return buffer[start : start + shape.numel()].view(shape)

    def _refresh(self) -> None:
        if self._compute.data_ptr() != self.masters.data_ptr():
            self._compute.copy_(self.masters.detach())

    def zero(self) -> None:
        """Clears gradients and statistics in place; their addresses never change."""
        self._gradients.zero_()
        self.exchange_buffer.zero_()

    def gather(self, *statistics: Tensor) -> None:
        """Brings the gradients of a backward, and up to 8 scalar sums, into the exchange buffer."""
        assert self.masters.grad is not None
        if self._gradients.data_ptr() != self.masters.grad.data_ptr():
            self.masters.grad.copy_(self._gradients)
        self.statistics[: len(statistics)] = torch.stack([value.detach() for value in statistics])

    def step(self, rate: float, denominator: Tensor) -> Tensor:
        """Divides the summed gradient by the summed `denominator`, clips, steps AdamW; returns the gradient's norm.

        When the norm is not finite the step is left out: masters, moments and their count stay as they are. The fused
        optimizer decides that on the device (as for torch.amp.GradScaler), so nothing waits for the host.
        """
        gradient = self.masters.grad
        assert gradient is not None
        gradient.div_(denominator)
        norm: Tensor = torch.linalg.vector_norm(gradient)
        if self._config.clip > 0:
            gradient.mul_((self._config.clip / (norm + 1e-6)).clamp(max=1.0))
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.found_inf = torch.isfinite(norm).logical_not().float()  # type: ignore[attr-defined]
        self._optimizer.step()
        self._refresh()
        return norm

    def state(self) -> dict[str, Tensor]:
        """Masters and moments by parameter name (`masters.NAME`, `exp_avg.NAME`, `exp_avg_sq.NAME`), on the CPU."""
        saved = self._optimizer.state[self.masters]
        buffers = {"masters": self.masters.detach()} | {
            key: saved[key] for key in ("exp_avg", "exp_avg_sq") if key in saved
        }
        return {
            f"{kind}.{name}": self._view(buffer, name).to("cpu", copy=True)
            for kind, buffer in buffers.items()
            for name in self._slots
        }

    @torch.no_grad()
    def copy_from(self, other: FlatParameters) -> None:
        """Takes over the masters of an equal drafter, which may be on another device."""
        self.masters.copy_(other.masters)
        self._refresh()


def check_finite(loss: float, gradient_norm: float, step: int) -> None:
    """TrainerError when the loss or the norm of the gradient stopped being a number."""
    for what, value in (("loss", loss), ("gradient norm", gradient_norm)):
        if not isfinite(value):
            raise TrainerError(
                f"The {what} of step {step} is {value}; nothing was saved after it.",
                next="lower optimizer.learning_rate, or use compute_dtype float32",
            )
