"""The contract that every method keeps, and functions that check your own method."""

from delayjax._src.testing.protocol import check_protocol as check_protocol
from delayjax._src.testing.replicas import check_averaging as check_averaging
from delayjax._src.testing.report import Report as Report
from delayjax._src.testing.transformation import check as check
