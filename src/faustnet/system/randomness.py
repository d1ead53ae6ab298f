"""Random-number generators of PyTorch: seed them, save and restore their states."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the generators of the CPU and of the device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def set_generator_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore states from `generator_states`."""
    torch.set_rng_state(states["cpu"])
    if device.type in states and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[device.type])


@contextmanager
def unchanged_generators(device: torch.device) -> Iterator[None]:
    """Restore the generators' states at the end of the block."""
    before = generator_states(device)
    try:
        yield
    finally:
        set_generator_states(before, device)


def leave_recording() -> None:
    """Make the generator of the current GPU usable again after a CUDA graph could not be recorded. torch leaves it in the
    mode of the recording, in which random numbers outside of a recording are an error. The generator gets a new state with
    the same values; earlier recordings keep the old one."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


@contextmanager
def seeded(seed: int, device: torch.device = torch.device("cpu")) -> Iterator[None]:
    """Seed the generators for the block, and restore their states at its end."""
    with unchanged_generators(device):
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        else:  # torch.manual_seed would format a stack trace, for a GPU that is initialised later
            torch.default_generator.manual_seed(seed)
        yield
