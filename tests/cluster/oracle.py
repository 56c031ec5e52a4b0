"""What each protocol does if the seconds of all tasks are known: slow, direct twins.

There is no event engine, but order statistics of a round, max-plus recursions on
clocks, one scan over the sorted arrivals. `times[w][k]` are the seconds of the k-th
task that worker w begins. A twin returns [(seconds, [(worker, read_version), ...]),
...], the updates; if a protocol refuses gradients, it returns these and the refused
ones, [(version, worker, read_version, seconds), ...].
"""

import heapq
import itertools
import math
import statistics

import numpy as np


def given(times):
    """A service with these times, in blocks of different lengths."""

    def service(rng, worker):
        row, begin = np.asarray(times[worker], np.float64), 0
        for size in itertools.cycle([1, 7, 2, 40, 100]):
            if begin >= len(row):
                break
            yield row[begin : begin + size]
            begin += size

    return service


def updates_of(trace):
    """The updates of a trace, in the form of the twins."""
    updates = [(float(seconds), []) for seconds in trace.seconds]
    for t, w, read in zip(trace.update, trace.worker, trace.read_version, strict=True):
        updates[t][1].append((int(w), int(read)))
    return updates


def assert_same(trace, updates):
    """Equal times up to rounding; equal workers and versions, in the same order."""
    measured = updates_of(trace)
    assert [rows for _, rows in measured] == [rows for _, rows in updates]
    np.testing.assert_allclose(
        trace.seconds, [seconds for seconds, _ in updates], rtol=1e-12
    )


# Barriers: every round begins at an update.


def k_sync(times, k, num_updates):
    """The k first of P; the others are canceled (papers B.3); k = P is hardsync."""
    now, updates = 0.0, []
    for t in range(num_updates):
        order = sorted((row[t], w) for w, row in enumerate(times))
        now += order[k - 1][0]
        updates.append((now, [(w, t) for _, w in order[:k]]))
    return updates


def k_batch_sync(times, k, num_updates):
    """The k first gradients of the P streams that begin with the round (B.3)."""
    begun = [0] * len(times)
    now, updates = 0.0, []
    for t in range(num_updates):
        streams = [
            [(end, w) for end in now + np.cumsum(row[n : n + k])]
            for w, (row, n) in enumerate(zip(times, begun, strict=True))
        ]
        first = list(heapq.merge(*streams))[:k]
        now, last = first[-1]
        workers = [w for _, w in first]
        # all but the last worker had one more gradient, which is lost
        for w in range(len(times)):
            begun[w] += workers.count(w) + (w != last)
        updates.append((float(now), [(w, t) for w in workers]))
    return updates


def mindflayer(times, trials, allotted, num_updates):
    """Rounds of timed trials (B.12): the sum of min(T, allotted), and who succeeded."""
    now, updates = 0.0, []
    for t in range(num_updates):
        arrived, ends = [], []
        for w, (n, limit) in enumerate(zip(trials, allotted, strict=True)):
            tasks = times[w][t * n : (t + 1) * n]
            clock = now + np.cumsum(np.minimum(tasks, limit))
            arrived += [
                (end, w)
                for end, task in zip(clock, tasks, strict=True)
                if task <= limit
            ]
            ends.append(clock[-1])
        now = float(max(ends))
        updates.append((now, [(w, t) for _, w in sorted(arrived)]))
    return updates


def gradient_coding_round(seconds, clusters, load):
    """A round's length (B.14): the slowest cluster's (n_c - load + 1)-th worker."""
    return max(
        sorted(load * seconds[w] for w in cluster)[len(cluster) - load]
        for cluster in clusters
    )


# No barrier: a stream of arrivals.


def k_batch_async(times, k, num_updates):
    """Renewal streams, merged: the i-th arrival of all belongs to update i // k (B.3).

    Its worker has read at its arrival before, the j-th of all: version (j + 1) // k.
    """
    total = k * num_updates
    streams = [
        [(end, w) for end in np.cumsum(row[:total])] for w, row in enumerate(times)
    ]
    arrivals = list(itertools.islice(heapq.merge(*streams), total))
    before = dict.fromkeys(range(len(times)), -1)
    rows = []
    for i, (_, w) in enumerate(arrivals):
        rows.append((w, (before[w] + 1) // k))
        before[w] = i
    return [
        (float(arrivals[t * k + k - 1][0]), rows[t * k : t * k + k])
        for t in range(num_updates)
    ]


def fedbuff(times, starts, running, buffer, num_updates):
    """`running` clients compute; starts[j] follows the (j - running)-th arrival (C.17).

    The protocol draws the clients. Here their order is given, and nothing is random.
    """
    tasks, starts = [iter(row) for row in times], iter(starts)
    flight = [(next(tasks[w]), w, 0) for w in itertools.islice(starts, running)]
    rows, updates = [], []
    while len(updates) < num_updates:
        now, w, read = first = min(flight)
        flight.remove(first)
        rows.append((w, read))
        if len(rows) == buffer:
            updates.append((float(now), rows))
            rows = []
        new = next(starts)
        flight.append((now + next(tasks[new]), new, len(updates)))
    return updates


def k_async(times, k, num_updates):
    """The k first of the P in flight; only these begin anew, at the update (B.3)."""
    tasks = [iter(row) for row in times]
    flight = {w: (next(task), 0) for w, task in enumerate(tasks)}
    updates = []
    for t in range(num_updates):
        first = sorted(flight, key=flight.get)[:k]
        now = float(flight[first[-1]][0])
        updates.append((now, [(w, flight[w][1]) for w in first]))
        for w in first:
            flight[w] = (now + next(tasks[w]), t + 1)
    return updates


def ssp(times, bound, num_updates):
    """Clocks (B.5). D[w][c] ends task c of w and S[w][c] begins it:

    S[w][c] = max(D[w][c-1], max_v D[v][c-1-bound]), D[w][c] = S[w][c] + T[w][c].
    """
    workers = range(len(times))
    starts, ends = ([[] for _ in workers] for _ in range(2))
    for c in range(num_updates):
        for w in workers:
            gate = 0.0
            if math.isfinite(bound) and c - 1 - bound >= 0:
                gate = max(ends[v][c - 1 - bound] for v in workers)
            starts[w].append(max(ends[w][c - 1] if c else 0.0, gate))
        for w in workers:
            ends[w].append(starts[w][c] + times[w][c])
    merged = sorted((ends[w][c], w, c) for w in workers for c in range(num_updates))
    clock = [end for end, _, _ in merged]
    return [
        (float(end), [(w, int(np.searchsorted(clock, starts[w][c], side="right")))])
        for end, w, c in merged[:num_updates]
    ]


def round_robin(times, num_updates):
    """U[t] = max(U[t-1], U[t-P] + T), each worker at its own last update (B.7)."""
    P = len(times)
    U, updates = [], []
    for t in range(num_updates):
        begun = U[t - P] if t >= P else 0.0
        U.append(max(U[t - 1] if t else 0.0, begun + times[t % P][t // P]))
        updates.append((float(U[t]), [(t % P, max(0, t - P + 1))]))
    return updates


def groups(times, members, num_updates, rounds=None):
    """The clock of each group is a sum of maxima; the groups are merged (B.8)."""
    rounds = rounds or [num_updates] * len(members)
    ends = []
    for g, group in enumerate(members):
        seconds = np.max([times[w][: rounds[g]] for w in group], axis=0)
        ends += [(end, g, r) for r, end in enumerate(np.cumsum(seconds))]
    ends = sorted(ends)[:num_updates]
    read = [0] * len(members)
    updates = []
    for t, (end, g, r) in enumerate(ends):
        order = sorted(members[g], key=lambda w: times[w][r])
        updates.append((float(end), [(w, read[g]) for w in order]))
        read[g] = t + 1
    return updates


# Acceptance: one arrival after another; the next one has the least of P clocks.


def bounded_staleness(times, bound, late, batch, num_updates):
    """Refuses, cancels or delays what would be older than `bound` (B.9, B.10, B.15).

    Rennala is bound 0 and "drop", Ringmaster R is bound R - 1 and batch 1. The bound is
    a number, or version -> number.
    """
    limit = bound if callable(bound) else lambda version: bound
    tasks = [iter(row) for row in times]
    ends = [next(task) for task in tasks]
    read = [0] * len(times)
    version, held, updates, dropped = 0, [], [], []

    def begin(w, now):
        ends[w], read[w] = now + next(tasks[w]), version

    while len(updates) < num_updates:
        now, w = min((end, w) for w, end in enumerate(ends))
        now = float(now)
        if version - read[w] > limit(version):
            dropped.append((version, w, read[w], now))
            begin(w, now)
            continue
        held.append((w, read[w]))
        ends[w] = math.inf
        flying = [v for v, end in enumerate(ends) if end < math.inf]
        outdated = late == "wait" and any(
            version + 1 - read[v] > limit(version + 1) for v in flying
        )
        if len(held) >= batch and not outdated:
            updates.append((now, held))
            held, version = [], version + 1
        if late == "wait":
            # a worker that is held has nothing to do
            idle = [] if held else [v for v in range(len(ends)) if v not in flying]
        else:
            idle = [w]
        if late == "restart" and not held:
            idle += [v for v in flying if version - read[v] > limit(version)]
        for v in idle:
            begin(v, now)
    return updates, dropped


def ringleader(times, num_updates):
    """Collect one gradient of each worker, then P updates, one for each (B.11)."""
    P = len(times)
    tasks = [iter(row) for row in times]
    ends = [next(task) for task in tasks]
    read, version = [0] * P, 0
    rows, updates = [], []
    delivered, surplus = set(), set()  # of this round, and already of the next one
    served = None  # None while collecting
    while len(updates) < num_updates:
        now, w = min((end, w) for w, end in enumerate(ends))
        rows.append((w, read[w]))
        update = False
        if served is None:
            delivered.add(w)
            if len(delivered) == P:
                served, update = set(), True
        elif w in served:
            surplus.add(w)
        else:
            update = True
        if update:
            updates.append((float(now), rows))
            rows, version = [], version + 1
            read[w] = version
            served.add(w)
            if len(served) == P:
                served, delivered, surplus = None, surplus, set()
        ends[w] = now + next(tasks[w])
    return updates


def malenia(times, least, num_updates):
    """All go on at one version until the harmonic mean of their numbers is enough."""
    tasks = [iter(row) for row in times]
    now, updates = 0.0, []
    while len(updates) < num_updates:
        ends = [now + next(task) for task in tasks]  # all begin anew
        numbers, rows = [0] * len(times), []
        while True:
            now, w = min((end, w) for w, end in enumerate(ends))
            numbers[w] += 1
            rows.append((w, len(updates)))
            if statistics.harmonic_mean(numbers) >= least - 1e-6 and 0 not in numbers:
                break
            ends[w] = now + next(tasks[w])
        updates.append((float(now), rows))
    return updates


def ia2sgd(times, num_updates):
    """Before all have delivered, a worker's newest gradient replaces its last one."""
    tasks = [iter(row) for row in times]
    ends, read = [next(task) for task in tasks], [0] * len(times)
    first, updates, dropped = {}, [], []
    while len(updates) < num_updates:
        now, w = min((end, w) for w, end in enumerate(ends))
        if updates:
            updates.append((float(now), [(w, read[w])]))
        else:
            if w in first:
                dropped.append((0, w, 0, first[w]))
            first[w] = float(now)
            if len(first) == len(times):
                updates.append((float(now), [(v, 0) for v in first]))
        ends[w], read[w] = now + next(tasks[w]), len(updates)
    return updates, dropped


# Links and slow machines.


def serial_asgd(times, latency, occupied, num_updates, before=False):
    """Plain ASGD through one link: a queue of messages, first come, first served.

    The version of a gradient is that at which its parameters enter the link. With
    `before`, a worker is started before its gradient makes the update: if the link is
    free, its parameters lack this update.
    """
    queue = [(0.0, w, "down", 0) for w in range(len(times))]
    tasks = [iter(row) for row in times]
    free, version, updates = 0.0, 0, []
    while version < num_updates:
        entered, w, direction, read = heapq.heappop(queue)
        begins = max(free, entered)
        free = begins + occupied
        if direction == "down":
            ready = free + latency + next(tasks[w]) + latency
            heapq.heappush(queue, (ready, w, "up", version - read))
        else:
            updates.append((free, [(w, read)]))
            version += 1
            waits = bool(queue) and queue[0][0] <= free
            heapq.heappush(queue, (free, w, "down", int(before and not waits)))
    return updates


def serial_hardsync(times, latency, occupied, num_updates):
    """P messages to the workers, the tasks, P messages back, one message at a time."""
    now, updates = 0.0, []
    P = len(times)
    for t in range(num_updates):
        sent = [now + (w + 1) * occupied for w in range(P)]
        ready = sorted((sent[w] + latency + times[w][t] + latency, w) for w in range(P))
        now = sent[-1]
        for entered, _ in ready:
            now = max(now, entered) + occupied
        updates.append((now, [(w, t) for _, w in ready]))
    return updates


def finish(begun, work, windows):
    """The time at which `work` seconds end at speed prod 1/factor; inf if never.

    windows: [(factor, start, stop), ...]; they act while start <= time < stop.
    """
    edges = sorted({edge for _, *pair in windows for edge in pair if edge > begun})
    now = begun
    for edge in [*edges, math.inf]:
        speed = 1.0
        for factor, start, stop in windows:
            if start <= now < stop:
                speed /= factor
        if speed and now + work / speed <= edge:
            return now + work / speed
        if edge == math.inf:
            return math.inf
        work -= (edge - now) * speed
        now = edge
    raise AssertionError


def outcome(begun, work, windows):
    """A task's (end, None), or (inf, back) if it meets a failure (a factor of inf).

    The worker is back when no failure that met the task, or came before, goes on.
    """
    end, back = finish(begun, work, windows), None
    failures = sorted(window[1:] for window in windows if window[0] == math.inf)
    for start, stop in failures:
        if back is None and begun < stop and start < end:
            back = stop
        elif back is not None and start <= back:
            back = max(back, stop)
    return (end, None) if back is None else (math.inf, back)


def slowed_asgd(times, windows, num_updates):
    """Plain ASGD; each worker has its windows; merged by time.

    A dead worker loses its task and begins another when it is back.
    """
    tasks = []
    for w, row in enumerate(times):
        now = 0.0
        for work in row:
            end, back = outcome(now, work, windows[w])
            if back is None:
                tasks.append((end, now, w))
            now = end if back is None else back
    tasks = sorted(tasks)[:num_updates]
    clock = [end for end, _, _ in tasks]
    return [
        (end, [(w, int(np.searchsorted(clock, begun, side="right")))])
        for end, begun, w in tasks
    ]


def slowed_k_sync(times, windows, k, num_updates):
    """k-sync of such workers; one that dies in a round may come back within it.

    A task that is handed to a dead worker is lost as well.
    """
    tasks = [iter(row) for row in times]
    now, updates = 0.0, []
    for t in range(num_updates):
        ends = {}
        begins = dict.fromkeys(range(len(times)), now)
        # the worker that begins first, until nobody begins before the k-th end
        while begins:
            w = min(begins, key=begins.get)
            if len(ends) >= k and begins[w] >= sorted(ends.values())[k - 1]:
                break
            begun = begins.pop(w)
            end, back = outcome(begun, next(tasks[w]), windows[w])
            if back is None:
                ends[w] = end
            elif back < math.inf:
                begins[w] = back
        first = sorted(ends, key=ends.get)[:k]
        now = float(ends[first[-1]])
        updates.append((now, [(w, t) for w in first]))
    return updates
