"""A link delays packets, limits the rate of each direction, and cleans up."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from benchmarks import slow_link

pytestmark = pytest.mark.runs


def why_not():
    try:
        slow_link.check_possible()
        with slow_link.slow_link(latency_seconds=0.0, bytes_per_second=1e9):
            return None
    except (OSError, RuntimeError) as error:
        return str(error)


@pytest.fixture(scope="module")
def here():
    """Skips tests where no link can be made."""
    if reason := why_not():
        pytest.skip(reason)


# The law, on pairs of sockets in place of devices, without root.


@pytest.fixture
def ends():
    """The outer ends of two devices with packets between them: 0.1 s, 1 MB/s."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in "01"]
    for device, end in pairs:
        device.setblocking(False)
        end.settimeout(5.0)
    stop, tell = os.pipe()
    forwarder = threading.Thread(
        target=slow_link.forward,
        args=([device.fileno() for device, _ in pairs], 0.1, 1e6, stop),
    )
    forwarder.start()
    yield [end for _, end in pairs]
    os.write(tell, b".")
    forwarder.join()
    for file in (stop, tell):
        os.close(file)
    for pair in pairs:
        for one in pair:
            one.close()


PACKET = bytes(50_000)  # takes 0.05 s
LATE = 0.04  # the seconds that a busy machine may add


def sent(end, packets):
    started = time.monotonic()
    for _ in range(packets):
        end.send(PACKET)
    return started


def arrivals(end, packets, started):
    """The times at which full packets arrive, in seconds after the start."""
    times = []
    for _ in range(packets):
        assert end.recv(len(PACKET)) == PACKET
        times.append(time.monotonic() - started)
    return times


def check_times(times, law):
    for k, (time_, expected) in enumerate(zip(times, law, strict=True)):
        assert expected - 1e-4 <= time_ <= expected + LATE, (k, times, law)


def test_packets_depart_one_after_the_other_and_arrive_a_latency_later(ends):
    started = sent(ends[0], 3)
    law = [k * 0.05 + 0.1 for k in (1, 2, 3)]
    check_times(arrivals(ends[1], 3, started), law)


def test_each_direction_has_the_whole_bandwidth(ends):
    started = sent(ends[0], 2)
    sent(ends[1], 2)
    law = [0.05 + 0.1, 2 * 0.05 + 0.1]
    check_times(arrivals(ends[1], 2, started), law)
    check_times(arrivals(ends[0], 2, started), [law[1], law[1]])


def test_what_was_idle_is_not_made_up_for(ends):
    arrivals(ends[1], 1, sent(ends[0], 1))
    time.sleep(0.2)
    check_times(arrivals(ends[1], 1, sent(ends[0], 1)), [0.05 + 0.1])


def test_the_forwarder_sleeps_while_nothing_is_due(ends):
    used = time.process_time()
    time.sleep(0.2)
    started = sent(ends[0], 2)
    arrivals(ends[1], 2, started)
    assert time.process_time() - used < 0.1  # of 0.4 s in all


# Real links

ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print(socket.gethostbyname(socket.gethostname()), flush=True)
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(2**20):
        connection.sendall(data)
"""
PING = """
import socket, sys, time
print(socket.gethostbyname(socket.gethostname()))
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(10):
        started = time.perf_counter()
        connection.sendall(b".")
        connection.recv(1)
        print(time.perf_counter() - started)
"""
SINK = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    left = int(sys.argv[2])
    while left:
        left -= len(connection.recv(2**20))
    connection.sendall(b".")
"""
SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000)) as connection:
    started = time.perf_counter()
    connection.sendall(bytes(int(sys.argv[2])))
    connection.recv(1)
    print(time.perf_counter() - started)
"""


def python(link, side, program, *arguments):
    """A Python program on a side; its output goes to a pipe."""
    return link.popen(
        side,
        [sys.executable, "-c", program, link.addresses[0], *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )


def talk(link, server, client, *arguments):
    """The outputs of a server on side 0 and of its client on side 1."""
    with python(link, 0, server, *arguments) as serving:
        greeting = serving.stdout.readline()
        with python(link, 1, client, *arguments) as calling:
            lines = calling.communicate(timeout=10)[0].split()
    return greeting.strip(), lines


@pytest.mark.usefixtures("here")
def test_the_bandwidth_is_kept():
    size, rate = 10_000_000, 20e6
    with slow_link.slow_link(latency_seconds=0.001, bytes_per_second=rate) as link:
        _, (seconds,) = talk(link, SINK, SEND, size)
    assert abs(float(seconds) / (size / rate) - 1) < 0.15


def namespace_of(pid):
    return pathlib.Path(f"/proc/{pid}/ns/net").readlink()


def in_use():
    """The network namespaces of all processes."""
    result = set()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            result.add(namespace_of(process.name))
        except OSError:  # the process has ended
            continue
    return result


SLEEP = ("sh", "-c", "echo; sleep 1000 & wait")  # it has a child process


@pytest.mark.usefixtures("here")
def test_nothing_is_left():
    namespace = namespace_of("self")
    sleepers, namespaces = [], set()
    with (
        pytest.raises(KeyError, match="in the block"),
        slow_link.slow_link(latency_seconds=0.0, bytes_per_second=1e6) as link,
    ):
        for side in (0, 1):
            sleepers.append(link.popen(side, SLEEP, stdout=subprocess.PIPE))
            sleepers[-1].stdout.readline()
            namespaces.add(namespace_of(sleepers[-1].pid))
        assert len(namespaces) == 2 and namespace not in namespaces
        raise KeyError("in the block")
    assert not namespaces & in_use()
    for sleeper in sleepers:
        assert sleeper.returncode == -signal.SIGKILL
        sleeper.stdout.close()


PARENT = f"""
from benchmarks.slow_link import slow_link
with slow_link(latency_seconds=0.0, bytes_per_second=1e6) as link:
    for side in (0, 1):
        sleeper = link.popen(side, {SLEEP!r}, stdout=-1)
        sleeper.stdout.read(1)
        print(sleeper.pid, flush=True)
    input()
"""


@pytest.mark.usefixtures("here")
def test_nothing_is_left_when_the_parent_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=pathlib.Path(__file__).parents[1],
    ) as parent:
        sleepers = [int(parent.stdout.readline()) for _ in (0, 1)]
        namespaces = {namespace_of(pid) for pid in sleepers}
        assert namespaces <= in_use()
        parent.kill()
    until = time.monotonic() + 5
    while namespaces & in_use() and time.monotonic() < until:
        time.sleep(0.02)
    assert not namespaces & in_use()


@pytest.mark.usefixtures("here")
def test_a_round_trip_takes_twice_the_latency_and_two_links_do_not_clash():
    latencies = 0.001, 0.03
    with (
        slow_link.slow_link(latency_seconds=latencies[0], bytes_per_second=1e9) as one,
        slow_link.slow_link(latency_seconds=latencies[1], bytes_per_second=1e9) as two,
    ):
        for link, latency in zip((one, two), latencies, strict=True):
            address, (peer, *times) = talk(link, ECHO, PING)
            assert (address, peer) == link.addresses  # each side has its host name
            assert 2 * latency <= min(map(float, times)) < 2 * latency + 0.003


# Machines without links


def test_without_root_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    link = slow_link.slow_link(latency_seconds=0.0, bytes_per_second=1.0)
    with pytest.raises(PermissionError, match=r"user 1000 may not.*as root"), link:
        pass


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tun", r"modprobe tun.*--device=/dev/net/tun"),
        (".", "`ip`: install iproute2"),
    ],
)
def test_without_what_it_needs_the_remedy_is_named(
    monkeypatch, tmp_path, device, message
):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(slow_link, "TUN", tmp_path / device)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=message):
        slow_link.check_possible()


@pytest.mark.parametrize(
    ("latency", "rate", "message"),
    [
        (-1.0, 1.0, "`latency_seconds` must be non-negative, got -1.0"),
        (float("nan"), 1.0, "`latency_seconds` must be non-negative, got nan"),
        (0.0, 0.0, "`bytes_per_second` must be positive, got 0.0"),
    ],
)
def test_impossible_links_are_refused(latency, rate, message):
    link = slow_link.slow_link(latency_seconds=latency, bytes_per_second=rate)
    with pytest.raises(ValueError, match=message), link:
        pass
