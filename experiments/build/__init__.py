"""Strings become functions here, and nowhere else."""

from experiments.build.checks import check as check
from experiments.build.clusters import cluster as cluster
from experiments.build.clusters import course as course
from experiments.build.clusters import for_arm as for_arm
from experiments.build.clusters import method as method
from experiments.build.clusters import protocol as protocol
from experiments.build.methods import Now as Now
from experiments.build.tasks import task as task
from experiments.build.training import OPTIMIZERS as OPTIMIZERS
from experiments.build.training import delay as delay
from experiments.build.training import learning_rate as learning_rate
from experiments.build.training import max_delay as max_delay
from experiments.build.training import modulation as modulation
from experiments.build.training import optimizer as optimizer
from experiments.build.training import replay as replay
from experiments.build.training import staleness_pmf as staleness_pmf
from experiments.build.training import transformation as transformation
