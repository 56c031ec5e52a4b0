"""Experiments on delayed gradients: a value that says what to train, and its run."""

from experiments.results import analysis as analysis
from experiments.results import claims as claims
from experiments.results import measures as measures
from experiments.results.claims import Published as Published
from experiments.results.effects import Effect as Effect
from experiments.results.runs import Run as Run
from experiments.results.sizes import amount as amount
from experiments.results.sizes import percent as percent
from experiments.results.sizes import points as points
from experiments.run import run as run
from experiments.training import Simulation as Simulation
from experiments.training import along as along
from experiments.training import on_devices as on_devices
from experiments.training import optimizer as optimizer
from experiments.training import pipelined as pipelined
from experiments.training import replicas as replicas
from experiments.training.experiment import Arm as Arm
from experiments.training.experiment import Experiment as Experiment
from experiments.training.ranges import Range as Range
from experiments.training.ranges import Search as Search
