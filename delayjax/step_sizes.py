"""Rules that choose a step size from the delay, in place of a learning rate.

A rule of this module stands at the end of a chain, in place of
`optax.scale_by_learning_rate`: it multiplies updates by minus its own step size. A law
of `modulation` is another thing: a factor behind an optimizer that has a learning rate.
`dasa` alone stands before the optimizer: its step size is 0, or the optimizer's.
"""

from delayjax._src.rules.adadelay import adadelay as adadelay
from delayjax._src.rules.adaptive import adaptive_1 as adaptive_1
from delayjax._src.rules.adaptive import adaptive_2 as adaptive_2
from delayjax._src.rules.dasa import dasa as dasa
from delayjax._src.rules.distance_capped import distance_capped as distance_capped
from delayjax._src.rules.dual_averaging import dasgd as dasgd
from delayjax._src.rules.dual_averaging import harmonic as harmonic
