"""A history of pytrees in a fixed number of slots."""

from delayjax._src.ring.calendar import Calendar as Calendar
from delayjax._src.ring.clocks import vmap_axes as vmap_axes
from delayjax._src.ring.host import on_host as on_host
from delayjax._src.ring.ring import Ring as Ring
from delayjax._src.ring.ring import cast as cast
from delayjax._src.ring.ring import init as init
from delayjax._src.ring.ring import push as push
from delayjax._src.ring.ring import read as read
from delayjax._src.ring.sharded import sharded as sharded
