"""Kinds of training: one optimizer, a trace, replicas, or the stages of a pipeline."""

from experiments.training.averaging import replicas as replicas
from experiments.training.gradients import on_devices as on_devices
from experiments.training.gradients import optimizer as optimizer
from experiments.training.jobs import Job as Job
from experiments.training.jobs import Model as Model
from experiments.training.jobs import Request as Request
from experiments.training.jobs import Training as Training
from experiments.training.jobs import Update as Update
from experiments.training.pipelined import pipelined as pipelined
from experiments.training.traces import Simulation as Simulation
from experiments.training.traces import along as along
