"""Two network namespaces joined by a link of chosen latency and bandwidth.

    with slow_link(latency_seconds=0.02, bytes_per_second=50e6) as link:
        server = link.popen(0, ["python", "server.py", link.addresses[0]])
        client = link.popen(1, ["python", "client.py", link.addresses[0]])

It needs Linux, root and /dev/net/tun, but no queueing discipline of the kernel (netem).
Each namespace has one TUN device, and a separate process, the forwarder, carries
packets between the two. In each direction, a packet of b bytes that arrives at time a

    departs    at  max(a, when the packet before departed) + b / bytes_per_second
    is read    at  departure + latency_seconds

No packet is dropped: the link has an infinite queue. The forwarder sleeps while no
packet is due. On two x86-64 cores it carries 1 GB/s; a round trip takes 0.05 ms too
long without latency and 0.5 ms too long with latency, and a byte costs 1.4 ns of a core
in addition to TCP.

The namespaces and devices have no names. They exist while the forwarder's files are
open, and vanish with it. The forwarder ends when the block is left or when its parent
dies, for any reason, and kills every process that runs in the namespaces.
"""

import argparse
import collections
import contextlib
import ctypes
import fcntl
import os
import pathlib
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

ADDRESSES = "10.0.0.1", "10.0.0.2"  # the same in every link: namespaces do not clash
MTU = 60_000  # bytes; large, so that few packets suffice
TUN = pathlib.Path("/dev/net/tun")

# constants of Linux, from sched.h, mount.h and if_tun.h
CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


class Link:
    """A running link; its sides are 0 and 1."""

    addresses = ADDRESSES

    def __init__(self, forwarder: int, namespaces: Sequence[tuple[int, int]]):
        """`namespaces`: for each side the forwarder's open files of net and mount."""
        self._files = [
            [f"/proc/{forwarder}/fd/{number}" for number in side] for side in namespaces
        ]
        self._processes: list[subprocess.Popen[Any]] = []

    def popen(
        self, side: int, argv: Sequence[str], **options: Any
    ) -> subprocess.Popen[Any]:
        """Starts `subprocess.Popen(argv, **options)` on a side; it dies with the link.

        On a side the host name resolves to the address of this side.
        """
        network, mounts = self._files[side]
        # entering a mount namespace leads to its root directory
        back = ("sh", "-c", 'cd "$0" && exec "$@"', options.pop("cwd", os.getcwd()))
        process = subprocess.Popen(
            ["nsenter", f"--net={network}", f"--mount={mounts}", *back, *argv],
            **options,
        )
        self._processes.append(process)
        return process

    def kill(self) -> None:
        """Kills the processes that `popen` started, and waits for their end."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


@contextlib.contextmanager
def slow_link(*, latency_seconds: float, bytes_per_second: float) -> Iterator[Link]:
    """Makes the link; at the end removes it and the processes on its sides.

    Args:
        latency_seconds: from one side to the other; a round trip takes twice as long.
        bytes_per_second: in each direction, headers included. May be infinite.

    Raises:
        ValueError: if the latency is negative, or the bandwidth not positive.
        PermissionError: without root.
        FileNotFoundError: without /dev/net/tun, `ip` or `nsenter`.
        RuntimeError: if the kernel refuses, or the forwarder ends before the block
            does; with its error output.
    """
    if not latency_seconds >= 0:
        raise ValueError(
            f"`latency_seconds` must be non-negative, got {latency_seconds}."
        )
    if not bytes_per_second > 0:
        raise ValueError(
            f"`bytes_per_second` must be positive, got {bytes_per_second}."
        )
    check_possible()
    forwarder = subprocess.Popen(
        [sys.executable, "-I", __file__, str(latency_seconds), str(bytes_per_second)],
        stdin=subprocess.PIPE,  # its end tells the forwarder to end
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # ^C is for the parent, which then leaves the block
    )
    link = None
    try:
        numbers = [int(word) for word in forwarder.stdout.readline().split()]
        if numbers:
            link = Link(forwarder.pid, [(numbers[0], numbers[1]), (*numbers[2:],)])
            yield link
    finally:
        if link is not None:
            link.kill()
        words = forwarder.communicate()[1]
    if link is None:
        raise RuntimeError(
            "The kernel refused network namespaces joined by TUN devices (a container"
            " needs `--cap-add=NET_ADMIN --cap-add=SYS_ADMIN` and its default security"
            f" profile off):\n{words}"
        )
    if forwarder.returncode:
        raise RuntimeError(f"The slow link broke: {forwarder.returncode}.\n{words}")


def check_possible() -> None:
    """Raises the error of `slow_link` if it cannot work, with the remedy."""
    if os.geteuid() != 0:
        raise PermissionError(
            "A slow link needs root, to make network namespaces and TUN devices:"
            f" user {os.geteuid()} may not. Run it as root (sudo)."
        )
    if not TUN.exists():
        raise FileNotFoundError(
            f"A slow link needs {TUN}: `modprobe tun`, or start the container with"
            " `--device=/dev/net/tun --cap-add=NET_ADMIN --cap-add=SYS_ADMIN`."
        )
    for tool, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            raise FileNotFoundError(
                f"A slow link needs the program `{tool}`: install {package}."
            )


# The forwarder.


def enter(call: str, *arguments: int) -> None:
    """Calls `unshare` or `setns` of Linux, which Python has since 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments):
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def make_side(side: int) -> tuple[int, int, int]:
    """Makes a side; returns the open files of its TUN device, net and mount."""
    outside = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    enter("unshare", CLONE_NEWNET | CLONE_NEWNS)
    mount("--make-rprivate", "/")
    local, peer = ADDRESSES[side], ADDRESSES[1 - side]
    with tempfile.NamedTemporaryFile("w", prefix="hosts") as hosts:
        hosts.write(f"127.0.0.1 localhost\n{local} {socket.gethostname()}\n")
        hosts.flush()
        os.chmod(hosts.name, 0o644)
        mount("--bind", hosts.name, "/etc/hosts")  # lives on when deleted

    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"tun", IFF_TUN | IFF_NO_PI))
    for buffer in ("tcp_rmem", "tcp_wmem"):  # to fill the link from the first byte
        pathlib.Path("/proc/sys/net/ipv4", buffer).write_text(f"4096 {2**25} {2**26}")
    for line in (
        "link set lo up",
        f"link set tun up mtu {MTU} txqueuelen 10000",
        f"addr add {local} peer {peer} dev tun",
        # nothing is lost: no congestion to control
        f"route replace {peer} dev tun src {local} congctl reno initcwnd 1000",
    ):
        subprocess.run(["ip", *line.split()], check=True)
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    enter("setns", outside, CLONE_NEWNS)  # back, so that the other side begins there
    os.close(outside)
    return device, network, mounts


def mount(*arguments: str) -> None:
    """Mounts a file system, which only this namespace sees."""
    subprocess.run(["mount", *arguments], check=True)


def forward(
    devices: Sequence[int], latency: float, bytes_per_second: float, until: int
) -> None:
    """Carries packets between two TUN devices until a file can be read."""
    free = [0.0, 0.0]  # when the last packet from each side departs
    under_way: list[collections.deque[tuple[float, bytes]]] = [
        collections.deque(),
        collections.deque(),
    ]
    while True:
        now = time.monotonic()
        due = [packets[0][0] - now for packets in under_way if packets]
        # `epoll` would round the timeout to milliseconds
        ready = select.select(
            [*devices, until], (), (), max(0.0, min(due)) if due else None
        )[0]
        if until in ready:
            return
        now = time.monotonic()
        for side, device in enumerate(devices):
            if device in ready:
                for packet in packets_at(device):
                    free[side] = max(free[side], now) + len(packet) / bytes_per_second
                    under_way[side].append((free[side] + latency, packet))
        for side, packets in enumerate(under_way):
            while packets and packets[0][0] <= now:
                os.write(devices[1 - side], packets.popleft()[1])


def packets_at(device: int) -> Iterator[bytes]:
    """The packets that wait at a device, at most 16, so that others are not late."""
    for _ in range(16):
        try:
            yield os.read(device, MTU)
        except BlockingIOError:
            return


def kill_all_in(namespaces: Sequence[int]) -> None:
    """Kills every process in these network namespaces but this one."""
    inodes = {os.fstat(namespace).st_ino for namespace in namespaces}
    while True:
        processes = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # a process may have ended
                if (process / "ns/net").stat().st_ino in inodes:
                    processes.append(int(process.name))
        processes = [pid for pid in processes if pid != os.getpid()]
        if not processes:
            return
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)  # they may have started other processes


def main() -> None:
    """Runs the forwarder: prints its namespaces' files, carries packets, and kills."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("latency", type=float, help="seconds")
    parser.add_argument("bytes_per_second", type=float)
    args = parser.parse_args()
    sides = [make_side(0), make_side(1)]
    with contextlib.suppress(PermissionError):  # it must not be late on busy cores
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print(*(number for side in sides for number in side[1:]), flush=True)
    try:
        devices = [device for device, *_ in sides]
        forward(devices, args.latency, args.bytes_per_second, sys.stdin.fileno())
    finally:
        kill_all_in([network for _, network, _ in sides])


if __name__ == "__main__":
    main()
