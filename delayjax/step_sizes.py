"""Rules that choose a step size from the delay, in place of a learning rate."""

from delayjax._src.rules.dual_averaging import dasgd as dasgd
from delayjax._src.rules.dual_averaging import harmonic as harmonic
from delayjax._src.rules.step_sizes import adadelay as adadelay
from delayjax._src.rules.step_sizes import adaptive_1 as adaptive_1
from delayjax._src.rules.step_sizes import adaptive_2 as adaptive_2
from delayjax._src.rules.step_sizes import dasa as dasa
from delayjax._src.rules.step_sizes import distance_capped as distance_capped
