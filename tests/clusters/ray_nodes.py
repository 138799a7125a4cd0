"""Two Ray nodes on this machine, of one core each: prints their address, and ends with its input."""

import sys

from ray.cluster_utils import Cluster

NODE = {
    "num_cpus": 1,
    "memory": 4_000_000_000,
    "object_store_memory": 80_000_000,
    "include_dashboard": False,
    "node_ip_address": "127.0.0.1",
}


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
