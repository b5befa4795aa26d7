"""Compiled transfers: planner/transfers.py on arrays."""

from __future__ import annotations

from planner.kernel.jit import inlined
from planner.kernel.state import (
    BACK,
    BATCH,
    DEPTH,
    ENTERING,
    FORWARD,
    KIND,
    LEAVING,
    REPLICAS,
    SEND,
    Laid,
    Room,
)
from planner.kernel.tables import GATHER, LATENCY, NEVER, NIC, P2P, POOL, Tables


@inlined
def send(tables: Tables, laid: Laid, count: int, room: Room) -> bool:
    """Write to stage_real[SEND] the transfers of every stage of the first `count` templates.

    False where a link inside a node has no profile.
    """
    nodes = room.node_real.shape[1]
    for n in range(nodes):
        room.node_real[LEAVING, n] = 0.0
        room.node_real[ENTERING, n] = 0.0
    for k in range(count):
        depth = laid.shape[DEPTH, k]
        size = tables.size[laid.shape[BATCH, k]] * tables.activation_bytes
        for r in range(laid.shape[REPLICAS, k]):
            near = laid.node[k, r * depth]
            for i in range(r * depth + 1, (r + 1) * depth):
                far = laid.node[k, i]
                if near != far:
                    room.node_real[LEAVING, near] += size
                    room.node_real[ENTERING, far] += size
                near = far
    for n in range(nodes):
        room.node_real[LEAVING, n] /= tables.node_real[NIC, n]
        room.node_real[ENTERING, n] /= tables.node_real[NIC, n]
    known = True
    for k in range(count):
        known = known and _send_of(tables, laid, k, room)
    return known


@inlined
def _send_of(tables: Tables, laid: Laid, k: int, room: Room) -> bool:
    depth, b = laid.shape[DEPTH, k], laid.shape[BATCH, k]
    for s in range(depth):
        room.stage_real[FORWARD, k, s] = 0.0
        room.stage_real[BACK, k, s] = 0.0
    for s in range(depth - 1):
        here, there = laid.stage[KIND, k, s], laid.stage[KIND, k, s + 1]
        slowest_out = slowest_home = 0.0
        for r in range(laid.shape[REPLICAS, k]):
            near, far = laid.node[k, r * depth + s], laid.node[k, r * depth + s + 1]
            if near == far:
                out = tables.link[P2P, tables.node_int[POOL, near], here, b]
                home = out
            else:
                # The gradient goes back over the same two cards: what entered leaves.
                crossing = max(room.node_real[LEAVING, near], room.node_real[ENTERING, far])
                crossing += max(tables.node_real[LATENCY, near], tables.node_real[LATENCY, far])
                out = crossing + tables.link[GATHER, tables.node_int[POOL, far], there, b]
                home = crossing + tables.link[GATHER, tables.node_int[POOL, near], here, b]
            if not (out < NEVER and home < NEVER):  # also where one is NaN
                return False
            slowest_out, slowest_home = max(slowest_out, out), max(slowest_home, home)
        room.stage_real[FORWARD, k, s] = slowest_out
        room.stage_real[BACK, k, s + 1] = slowest_home
    for s in range(depth):
        room.stage_real[SEND, k, s] = room.stage_real[FORWARD, k, s] + room.stage_real[BACK, k, s]
    return True
