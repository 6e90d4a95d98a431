"""Whether the process of an actor is gone, by the word of its node.

Ray calls an actor dead, and its name free, as soon as it has given the order to kill it. A process that hangs lives on
for five seconds after that, with its ports and its GPU. Of its process the node tells the cluster's head when it ends.
"""

from __future__ import annotations

from typing import Any


def is_gone(handle: Any) -> bool:
    """Whether no process of this actor is left, or its node is lost. Blocks; raises Ray's errors.

    It never had one, where it was killed before Ray found a place for it. An older Ray (2.40 was looked at) cannot be
    asked: there Ray's word that the actor is dead has to do.
    """
    import ray

    # As in `store`: without a public name. Ray's own state API asks the same tables, through a server that may not run.
    from ray._private import state
    from ray.core.generated import gcs_pb2

    connected = vars(state.GlobalState).get("_connect_and_get_accessor")
    if connected is None:
        return True
    tables: Any = connected(state.state)
    messages: Any = gcs_pb2
    actor = tables.get_actor_info(vars(handle)["_ray_actor_id"])
    if actor is None:
        return True
    address = messages.ActorTableData.FromString(actor).address
    if not address.worker_id:
        return True
    process = tables.get_worker_info(ray.WorkerID(address.worker_id))
    if process is None or not messages.WorkerTableData.FromString(process).is_alive:
        return True
    nodes: Any = ray.nodes()  # type: ignore[no-untyped-call]
    return not any(one["Alive"] and one["NodeID"] == address.node_id.hex() for one in nodes)
