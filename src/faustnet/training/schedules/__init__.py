"""Schedules: in which order the layers process the batches. Only the greedy schedule changes what is learned."""

from faustnet.training.schedules.base import Schedule
from faustnet.training.schedules.greedy import Greedy
from faustnet.training.schedules.sequential import Sequential
from faustnet.training.schedules.wavefront import Wavefront

__all__ = ["SCHEDULES", "Greedy", "Schedule", "Sequential", "Wavefront"]

SCHEDULES: dict[str, type[Schedule]] = {schedule.name: schedule for schedule in (Sequential, Wavefront, Greedy)}
