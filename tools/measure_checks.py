#!/usr/bin/env python3
"""What torch's checks of every collective (TORCH_DISTRIBUTED_DEBUG=DETAIL) take on this machine, by members.

Needs torch, no device: processes of this machine sum eight numbers over gloo with and without the checks.
Prints microseconds a collective.

    python3 tools/measure_checks.py
"""

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CALLS = 200


def member(rank: int, members: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=members)
    numbers = torch.ones(8)
    for _ in range(20):
        dist.all_reduce(numbers)
    dist.barrier()
    start = time.time()
    for _ in range(CALLS):
        dist.all_reduce(numbers)
    microseconds = (time.time() - start) / CALLS * 1e6
    if rank == 0:
        print(f"{os.environ['TORCH_DISTRIBUTED_DEBUG']:6} {members:2} members {microseconds:6.0f} us", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    port = 29600
    for mode in ("OFF", "DETAIL"):
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = mode
        for members in (2, 4, 8):
            port += 1
            mp.spawn(member, args=(members, port), nprocs=members)
