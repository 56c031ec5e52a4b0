"""Rules that choose a step size from the delay, in place of a learning rate.

Put a rule of this module at the end of a chain, in place of
`optax.scale_by_learning_rate`: it multiplies updates by minus its step size. A law of
`modulation` is different: a factor behind an optimizer that has a learning rate. Only
`dasa` goes before the optimizer: it keeps a gradient or sets it to 0.
"""

from delayjax._src.rules.budgets import inverse_within_budget as inverse_within_budget
from delayjax._src.rules.budgets import share_of_budget as share_of_budget
from delayjax._src.rules.dual_averaging import dasgd as dasgd
from delayjax._src.rules.dual_averaging import harmonic as harmonic
from delayjax._src.rules.step_sizes import adadelay as adadelay
from delayjax._src.rules.step_sizes import dasa as dasa
from delayjax._src.rules.step_sizes import distance_capped as distance_capped
