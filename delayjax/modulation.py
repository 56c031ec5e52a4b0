"""Laws that turn a staleness into a factor."""

from delayjax._src.rules.modulation import capped as capped
from delayjax._src.rules.modulation import delay_adaptive as delay_adaptive
from delayjax._src.rules.modulation import exponential as exponential
from delayjax._src.rules.modulation import hinge as hinge
from delayjax._src.rules.modulation import inverse as inverse
from delayjax._src.rules.modulation import polynomial as polynomial
