"""Pipelines that may never flush: schedules, weights of stages, and optimizers."""

from delayjax._src.pipelines.on_devices import run as run
from delayjax._src.pipelines.parts import Parts as Parts
from delayjax._src.pipelines.pipeline import Pipeline as Pipeline
from delayjax._src.pipelines.schedule import Schedule as Schedule
from delayjax._src.pipelines.schedule import gpipe as gpipe
from delayjax._src.pipelines.schedule import one_f_one_b as one_f_one_b
from delayjax._src.pipelines.schedule import pipedream as pipedream
from delayjax._src.pipelines.schedule import pipemare as pipemare
from delayjax._src.pipelines.schedule import two_buffered as two_buffered
from delayjax._src.pipelines.simulated import late as late
from delayjax._src.pipelines.simulated import mixed as mixed
from delayjax._src.pipelines.simulated import vertical_sync as vertical_sync
from delayjax._src.pipelines.stages import stage_delays as stage_delays
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
from delayjax._src.rules.nadam import nadam as nadam
from delayjax._src.rules.reschedule_by_delay import (
    reschedule_by_delay as reschedule_by_delay,
)
from delayjax._src.rules.rotated_adam import rotated_adam as rotated_adam
