"""In which order the layers work on the batches. It never changes what is learned, the greedy schedule aside."""

from faustnet.training.schedules.base import Schedule
from faustnet.training.schedules.greedy import Greedy
from faustnet.training.schedules.sequential import Sequential
from faustnet.training.schedules.wavefront import Wavefront

__all__ = ["SCHEDULES", "Greedy", "Schedule", "Sequential", "Wavefront"]

SCHEDULES: dict[str, type[Schedule]] = {schedule.name: schedule for schedule in (Sequential, Wavefront, Greedy)}
