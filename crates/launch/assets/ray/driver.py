"""Starts launch.sh on every node of a Ray cluster, one process group a node, and fails with the
first node that fails."""
import pathlib
import subprocess
import sys
import tempfile

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES, DEVICES, TEMPORARY = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
HERE = pathlib.Path(__file__).resolve().parent


@ray.remote(max_retries=0)
def address():
    return ray.util.get_node_ip_address()


@ray.remote(max_retries=0)
def node(files, rank, host):
    pathlib.Path(TEMPORARY).mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(dir=TEMPORARY, prefix="launch-"))
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment = {"NODE_RANK": str(rank), "RDZV_HOST": host}
    words = ["env", *(f"{name}={value}" for name, value in environment.items()), "bash", str(folder / "launch.sh")]
    return subprocess.run(words, cwd=folder, check=False).returncode


def main():
    ray.init()
    group = placement_group([{"GPU": DEVICES, "CPU": 1}] * NODES, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    files = {str(p.relative_to(HERE)): p.read_text() for p in HERE.rglob("*") if p.is_file()}

    def on(index):
        return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)

    host = ray.get(address.options(scheduling_strategy=on(0), num_cpus=0).remote())
    runs = [
        node.options(scheduling_strategy=on(rank), num_cpus=1, num_gpus=DEVICES).remote(files, rank, host)
        for rank in range(NODES)
    ]
    sys.exit(max(ray.get(runs)))


if __name__ == "__main__":
    main()
