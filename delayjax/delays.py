"""Delays as functions of the step."""

from delayjax._src.history.delays import from_trace as from_trace
from delayjax._src.history.delays import geometric as geometric
from delayjax._src.history.delays import per_worker as per_worker
from delayjax._src.history.delays import poisson as poisson
from delayjax._src.history.delays import uniform as uniform
from delayjax._src.history.layers import Layers as Layers
