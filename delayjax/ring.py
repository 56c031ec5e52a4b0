"""A history of pytrees in a fixed number of slots."""

from delayjax._src.history.cast import cast as cast
from delayjax._src.history.deliveries import Calendar as Calendar
from delayjax._src.history.host import on_host as on_host
from delayjax._src.history.ring import Ring as Ring
from delayjax._src.history.ring import init as init
from delayjax._src.history.ring import push as push
from delayjax._src.history.ring import read as read
from delayjax._src.history.sharded import sharded as sharded
from delayjax._src.history.shared_clocks import vmap_axes as vmap_axes
