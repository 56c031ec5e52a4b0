"""Laws that turn a staleness into a factor."""

from delayjax._src.modulation import capped as capped
from delayjax._src.modulation import delay_adaptive as delay_adaptive
from delayjax._src.modulation import exponential as exponential
from delayjax._src.modulation import hinge as hinge
from delayjax._src.modulation import inverse as inverse
from delayjax._src.modulation import polynomial as polynomial
