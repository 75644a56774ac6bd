#!/usr/bin/env python3
"""Runs a program on two hosts that are two network namespaces of this one, with a delay between them.

    bench/two_hosts.py --delay 100 [--cpus 0-3,4-7] -- quipu bench -m MODEL -t 4 --ranks-by messages

mpirun starts the program once in each namespace; a process of this script carries packets between them, and
holds each back for DELAY microseconds. First it prints the latency that two programs see: half of the time from
a message of 8 KB over TCP to its answer. That, and not DELAY alone, is what `quipu schedule --network` takes.
Linux and root; Open MPI. --cpus: processors of each host; the carrier should have one more.
"""
import argparse
import ctypes
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

ADDRESS = ("10.199.0.1", "10.199.0.2")
MTU = 16000
LIBC = ctypes.CDLL(None, use_errno=True)
NEWNET, NEWUTS = 0x40000000, 0x04000000
TUNSETIFF, TAP, NO_INFO = 0x400454CA, 0x0002, 0x1000
SET_FLAGS, SET_ADDRESS, SET_MASK, SET_MTU, UP = 0x8914, 0x8916, 0x891C, 0x8922, 0x1 | 0x40


def request(sock, code, name, data):
    fcntl.ioctl(sock, code, struct.pack("16s16s", name.encode(), data))


def enter(host):
    """A new namespace for this process; its end of the wire."""
    if LIBC.unshare(NEWNET | NEWUTS) != 0:
        sys.exit(f"two_hosts: no namespace: {os.strerror(ctypes.get_errno())}")
    socket.sethostname(f"host{host}")
    wire = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(wire, TUNSETIFF, struct.pack("16sH14s", b"wire", TAP | NO_INFO, b""))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for code, address in ((SET_ADDRESS, ADDRESS[host]), (SET_MASK, "255.255.255.0")):
            request(s, code, "wire", struct.pack("HH4s8s", socket.AF_INET, 0, socket.inet_aton(address), b""))
        request(s, SET_MTU, "wire", struct.pack("i", MTU))
        for name in ("lo", "wire"):
            request(s, SET_FLAGS, name, struct.pack("H", UP))
    return wire


def carry(wires, delay):
    """Carries packets between the wires until it is killed."""
    waiting = {w: deque() for w in wires}
    other = dict(zip(wires, reversed(wires)))
    poll = select.poll()
    for w in wires:
        os.set_blocking(w, False)
        poll.register(w, select.POLLIN)
    while True:
        poll.poll(0 if any(waiting.values()) else None)
        for w in wires:
            try:
                while True:
                    waiting[w].append((time.monotonic() + delay, os.read(w, MTU + 64)))
            except BlockingIOError:
                pass
        for w, packets in waiting.items():
            while packets and packets[0][0] <= time.monotonic():
                os.write(other[w], packets.popleft()[1])


def exactly(sock, n):
    while n > 0:
        n -= len(sock.recv(n))


def echo(host, rounds=300, size=8192):
    """Half of the median time of a message and its answer, in microseconds; of host 0."""
    times = []
    if host == 1:
        with socket.create_server((ADDRESS[1], 5000)) as server, server.accept()[0] as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(rounds):
                exactly(sock, size)
                sock.sendall(bytes(size))
        return None
    for _ in range(100):
        try:
            sock = socket.create_connection((ADDRESS[1], 5000), timeout=5)
            break
        except OSError:
            time.sleep(0.1)
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(rounds):
            begin = time.monotonic()
            sock.sendall(bytes(size))
            exactly(sock, size)
            times.append(time.monotonic() - begin)
    return sorted(times)[rounds // 2] / 2 * 1e6


def agent(arguments):
    """What mpirun runs in place of ssh: `HOST COMMAND...` in the namespaces of the other host."""
    with open(os.environ["TWO_HOSTS_OTHER"]) as file:
        process = file.read().strip()
    for kind, flag in (("net", NEWNET), ("uts", NEWUTS)):
        with open(f"/proc/{process}/ns/{kind}") as space:
            if LIBC.setns(space.fileno(), flag) != 0:
                sys.exit(f"two_hosts: {os.strerror(ctypes.get_errno())}")
    if os.environ.get("TWO_HOSTS_CPUS"):
        os.sched_setaffinity(0, cpus_of(os.environ["TWO_HOSTS_CPUS"]))
    os.execvp("sh", ["sh", "-c", " ".join(arguments[1:])])


def cpus_of(text):
    first, _, last = text.partition("-")
    return set(range(int(first), int(last or first) + 1))


def host_main(host, pipe, options):
    """A child process: the host's namespaces, then on host 0 the program."""
    wire = enter(host)
    socket.send_fds(pipe, [b"w"], [wire])
    pipe.recv(1)  # the carrier is there
    latency = echo(host)
    if host == 1:
        signal.pause()
    print(f"latency of 8 KB: {latency:.0f} us", flush=True)
    own, _, theirs = (options.cpus or "").partition(",")
    if own:
        os.sched_setaffinity(0, cpus_of(own))
    os.environ.update(TWO_HOSTS_OTHER=options.file, TWO_HOSTS_CPUS=theirs)
    me = os.path.abspath(__file__)
    sys.exit(subprocess.call(
        [shutil.which("mpirun"), "--allow-run-as-root", "--bind-to", "none", "-n", "2", "-host",
         f"{ADDRESS[0]}:1,{ADDRESS[1]}:1", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", me,
         "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "wire", "--mca", "oob_tcp_if_include", "wire",
         *options.command]))


def main():
    if len(sys.argv) > 2 and sys.argv[1] in ADDRESS:
        agent(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--delay", type=float, default=0, help="microseconds")
    parser.add_argument("--cpus", help="of both hosts, as 0-3,4-7")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    options.file = f"/tmp/two_hosts.{os.getpid()}"
    pipes, children = [], []
    for host in (0, 1):
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            host_main(host, theirs, options)
        pipes.append(ours)
        children.append(child)
    Path(options.file).write_text(str(children[1]))
    wires = [socket.recv_fds(p, 1, 1)[1][0] for p in pipes]
    carrier = os.fork()
    if carrier == 0:
        carry(wires, options.delay * 1e-6)
    for p in pipes:
        p.send(b"g")
    status = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
    for child in (carrier, children[1]):
        os.kill(child, signal.SIGKILL)
    os.unlink(options.file)
    return status


if __name__ == "__main__":
    sys.exit(main())
