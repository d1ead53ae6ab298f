"""In which order the layers work on the batches. It never changes what is learned, the greedy schedule aside."""

from faustnet.schedules.base import Schedule
from faustnet.schedules.greedy import Greedy
from faustnet.schedules.sequential import Sequential
from faustnet.schedules.wavefront import Wavefront

__all__ = ["SCHEDULES", "Greedy", "Schedule", "Sequential", "Wavefront"]

SCHEDULES: dict[str, type[Schedule]] = {schedule.name: schedule for schedule in (Sequential, Wavefront, Greedy)}
