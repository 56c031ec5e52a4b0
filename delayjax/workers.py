"""A step that is written for one worker, simulated or run on many devices."""

from delayjax._src.ground.axes import vary as vary
from delayjax._src.workers.run import run as run
from delayjax._src.workers.simulate import simulate as simulate
from delayjax._src.workers.state import Workers as Workers
from delayjax._src.workers.state import WorkerState as WorkerState
