"""Pipelines that may never flush: schedules, and which weights their stages read."""

from delayjax._src.pipelines.schedule import Schedule as Schedule
from delayjax._src.pipelines.schedule import gpipe as gpipe
from delayjax._src.pipelines.schedule import one_f_one_b as one_f_one_b
from delayjax._src.pipelines.schedule import pipedream as pipedream
from delayjax._src.pipelines.schedule import pipemare as pipemare
from delayjax._src.pipelines.schedule import two_buffered as two_buffered
from delayjax._src.pipelines.timetable import Timetable as Timetable
from delayjax._src.pipelines.timetable import timetable as timetable
from delayjax._src.rules.discrepancy_correction import (
    backward_params as backward_params,
)
from delayjax._src.rules.discrepancy_correction import (
    discrepancy_correction as discrepancy_correction,
)
from delayjax._src.rules.moment_directions import adam_direction as adam_direction
from delayjax._src.rules.moment_directions import sgd_direction as sgd_direction
from delayjax._src.rules.reschedule_by_delay import (
    reschedule_by_delay as reschedule_by_delay,
)
