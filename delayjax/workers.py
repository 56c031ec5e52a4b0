"""One step written for one worker, simulated or run on many devices."""

from delayjax._src.ground.axes import vary as vary
from delayjax._src.workers import Workers as Workers
from delayjax._src.workers import WorkerState as WorkerState
from delayjax._src.workers import run as run
from delayjax._src.workers import simulate as simulate
