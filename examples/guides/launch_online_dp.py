#!/usr/bin/env python3
"""Starts the data-parallel ranks of this node, a server each: `bash run_dp_template.sh` of the working directory, once a
rank, with these arguments:

  $1 devices, as 0,1,2,3    $2 port    $3 ranks of all nodes    $4 this rank    $5 address of node 0    $6 its port
  $7 tensor ranks of each

It runs until all have ended. If one ends with an error the others are stopped, and its exit code is the launcher's.
"""
import argparse
import os
import signal
import subprocess
import sys
import time

TEMPLATE = "./run_dp_template.sh"
STOP_SECONDS = 30


def read_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dp-size", type=int, required=True, help="ranks of all nodes")
    parser.add_argument("--tp-size", type=int, default=1, help="devices of each rank")
    parser.add_argument("--dp-size-local", type=int, help="ranks of this node (all)")
    parser.add_argument("--dp-rank-start", type=int, default=0, help="the first of them")
    parser.add_argument("--dp-address", required=True, help="of node 0")
    parser.add_argument("--dp-rpc-port", default="12345", help="of node 0")
    parser.add_argument("--vllm-start-port", type=int, default=9000, help="of the first server; the others follow")
    flags = parser.parse_args()
    local = flags.dp_size if flags.dp_size_local is None else flags.dp_size_local
    if min(flags.dp_size, flags.tp_size, local) < 1 or flags.dp_rank_start < 0:
        parser.error("--dp-size, --tp-size and --dp-size-local must be 1 or more, --dp-rank-start 0 or more")
    if flags.dp_rank_start + local > flags.dp_size:
        parser.error(f"--dp-rank-start {flags.dp_rank_start} and {local} ranks of this node are more than --dp-size "
                     f"{flags.dp_size}")
    if not 0 < flags.vllm_start_port <= 65536 - local:
        parser.error(f"--vllm-start-port {flags.vllm_start_port}: no {local} ports follow it")
    return flags, local


def start(flags, local):
    devices = ",".join(str(local * flags.tp_size + each) for each in range(flags.tp_size))
    words = [devices, flags.vllm_start_port + local, flags.dp_size, flags.dp_rank_start + local, flags.dp_address,
             flags.dp_rpc_port, flags.tp_size]
    # A group of its own, so that a stop reaches what the template has started.
    return subprocess.Popen(["bash", TEMPLATE, *map(str, words)], start_new_session=True)


def stop(ranks):
    for signum in (signal.SIGTERM, signal.SIGKILL):
        running = [rank for rank in ranks if rank.poll() is None]
        for rank in running:
            os.killpg(rank.pid, signum)
        end = time.monotonic() + STOP_SECONDS
        while any(rank.poll() is None for rank in running) and time.monotonic() < end:
            time.sleep(0.05)


def main():
    flags, local = read_flags()
    if not os.path.exists(TEMPLATE):
        print(f"{TEMPLATE} is not in this directory: it is the script with the `vllm serve` command of this node",
              file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ranks = [start(flags, each) for each in range(local)]
    failed = None
    try:
        while failed is None and any(rank.poll() is None for rank in ranks):
            time.sleep(0.05)
            failed = next((rank for rank in ranks if rank.poll()), None)
    except KeyboardInterrupt:
        pass
    finally:
        stop(ranks)
    if failed is None:
        return 0
    number = flags.dp_rank_start + ranks.index(failed)
    print(f"rank {number} ended with exit code {failed.returncode}; the others were stopped", file=sys.stderr)
    return failed.returncode if failed.returncode > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
