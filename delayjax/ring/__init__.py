"""A history of pytrees in a fixed number of slots, and where it is kept."""

from delayjax.ring.host import on_host as on_host
from delayjax.ring.resize import resize as resize
from delayjax.ring.resize import resize_history as resize_history
from delayjax.ring.resize import strip_history as strip_history
from delayjax.ring.ring import Ring as Ring
from delayjax.ring.ring import Storage as Storage
from delayjax.ring.ring import cast as cast
from delayjax.ring.ring import init as init
from delayjax.ring.ring import plain as plain
from delayjax.ring.ring import push as push
from delayjax.ring.ring import read as read
from delayjax.ring.ring import vmap_axes as vmap_axes
from delayjax.ring.sharded import sharded as sharded
