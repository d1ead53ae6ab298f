"""Torch's global generators: seeding them, putting them down and taking them up."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Of the CPU, and of the device if it is another."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def set_generator_states(states: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type in states and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[device.type])


@contextmanager
def unchanged_generators(device: torch.device) -> Iterator[None]:
    """What is drawn in this block will be drawn again after it."""
    before = generator_states(device)
    try:
        yield
    finally:
        set_generator_states(before, device)


@contextmanager
def seeded(seed: int, device: torch.device = torch.device("cpu")) -> Iterator[None]:
    """Generators start from `seed` in this block, and are as they were after it."""
    with unchanged_generators(device):
        torch.manual_seed(seed)
        yield
