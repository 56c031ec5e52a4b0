"""Functions for methods of your own. `delayjax.testing` checks such a method."""

from delayjax._src.averaging.user_method import averaged as averaged
from delayjax._src.ground.axes import typed_like as typed_like
from delayjax._src.ground.axes import vary_as as vary_as
from delayjax._src.ground.donation import unshared as unshared
from delayjax._src.ground.refusal import register_producer as register_producer
