"""Experiments on delayed gradients: a value that says what to train, and its run."""

from experiments.claims import Claim as Claim
from experiments.experiment import Arm as Arm
from experiments.experiment import Experiment as Experiment
from experiments.records import Found as Found
from experiments.records import Run as Run
from experiments.records import load as load
from experiments.run import run as run
from experiments.training import Simulation as Simulation
from experiments.training import along as along
from experiments.training import on_devices as on_devices
from experiments.training import optimizer as optimizer
from experiments.training import replicas as replicas
