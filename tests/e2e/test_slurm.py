"""The examples for SLURM, given to a real one: two nodes of it on this machine, without its system service."""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import openai
import pytest

from conftest import PROGRAM, ROOT, Server
from nodes import SMALL, free_port, wait_for

EXAMPLES = ROOT / "examples/slurm"
QUESTION = dict(prompt="What is 3 + 4?", temperature=0, max_tokens=24,
                extra_body={"ignore_eos": True, "return_token_ids": True})
DAEMONS = {name: shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
           for name in ("munged", "slurmctld", "slurmd")}

pytestmark = [
    pytest.mark.skipif(not all(DAEMONS.values()) or not shutil.which("sbatch"),
                       reason="SLURM is absent: tools/install.sh test"),
    pytest.mark.skipif(os.geteuid() != 0, reason="SLURM's daemons start jobs as root only"),
    pytest.mark.skipif(not any(pathlib.Path("/sys/fs/cgroup").glob("*")),
                       reason="no control groups are mounted here, slurmd does not start without"),
]

# GPUs are files here: SLURM hands out names, and the ranks run on the CPU.
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool.%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0
ReturnToService=2
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=1024 Gres=gpu:8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=1024 Gres=gpu:8
PartitionName=gpu Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def processes_with(*variables):
    """That have all of these in their environment, as they were started."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes().split(b"\0")
            state = (path / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z" and all(variable.encode() in environment for variable in variables):
            found.append(int(path.name))
    return found


class Slurm:
    """A controller and two nodes, in a folder of their own."""

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baltoro-slurm-"))
        self.conf = self.dir / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self.daemons = []

    def start(self):
        for name in ("state", "spool.n1", "spool.n2"):
            (self.dir / name).mkdir()
        for gpu in range(8):
            (self.dir / f"gpu{gpu}").touch()
        (self.dir / "gres.conf").write_text(f"Name=gpu File={self.dir}/gpu[0-7]\n")
        self.conf.write_text(CONF.format(host=socket.gethostname().split(".")[0], dir=self.dir,
                                         ports=[free_port() for _ in range(3)]))
        key = self.dir / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        self.run_daemon("munged", "-F", "--force", *(f"--{name}={self.dir}/munge.{suffix}" for name, suffix in (
            ("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))))
        wait_for(lambda: (self.dir / "munge.socket").exists(), 10, "munge")
        self.run_daemon("slurmctld", "-D")
        for node in ("n1", "n2"):
            self.run_daemon("slurmd", "-D", "-N", node)
        wait_for(lambda: self.ask("sinfo", "-h", "-N", "-o", "%N %t").split() == ["n1", "idle", "n2", "idle"], 20,
                 "both nodes")

    def run_daemon(self, name, *flags):
        with open(self.dir / f"daemon.{len(self.daemons)}.{name}.log", "w") as log:
            self.daemons.append(subprocess.Popen([DAEMONS[name], *flags], env=self.env, stdout=log, stderr=log,
                                                 stdin=subprocess.DEVNULL))

    def ask(self, *command):
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=20).stdout

    def stop(self):
        if len(self.daemons) > 1:
            self.ask("scancel", "-u", "root")
            for _ in range(50):
                if not self.ask("squeue", "-h").strip():
                    break
                time.sleep(0.1)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in processes_with(f"SLURM_CONF={self.conf}"):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.dir, ignore_errors=True)

    def logs(self):
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in self.dir.glob("daemon.*.log"))


@pytest.fixture(scope="module")
def slurm():
    cluster = Slurm()
    try:
        cluster.start()
    except Exception:
        logs = cluster.logs()
        cluster.stop()
        raise RuntimeError("SLURM did not start:\n" + logs)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def one_rank():
    server = Server(*SMALL)
    try:
        return server.client().completions.create(model="pocket", **QUESTION).choices[0].token_ids
    finally:
        server.stop()


class Job:
    """An example as it is, with the pocket model and ranks on the CPU."""

    def __init__(self, slurm, script, *flags):
        self.slurm, self.port = slurm, free_port()
        self.key = slurm.dir / "shared.key"
        variables = {"BALTORO": PROGRAM, "MODEL": str(ROOT / "pocket/model"), "PORT": str(self.port),
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "CLUSTER_KEY_FILE": str(self.key)}
        submitted = subprocess.run(
            ["sbatch", "--parsable", str(EXAMPLES / script), *SMALL, "--kv-cache-dtype", "auto", "--host", "127.0.0.1",
             "--served-model-name", "pocket", *flags],
            env={**slurm.env, **variables}, cwd=slurm.dir, capture_output=True, text=True, timeout=20)
        assert submitted.returncode == 0, submitted.stderr
        self.id = submitted.stdout.strip()
        self.log = slurm.dir / f"baltoro.{self.id}.log"

    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def state(self):
        found = re.search(r"JobState=(\S+)", self.slurm.ask("scontrol", "show", "job", self.id))
        return found.group(1) if found else "GONE"

    def wait_ready(self):
        def ready():
            assert self.state() in ("PENDING", "CONFIGURING", "RUNNING"), self.text()
            return f"Ready: http://127.0.0.1:{self.port}" in self.text()
        wait_for(ready, 60, "the line Ready")

    def client(self):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0)

    def answer(self):
        return self.client().completions.create(model="pocket", **QUESTION).choices[0].token_ids

    def door_of(self, node):
        """What SIGTERM is for: `baltoro serve` on that node, not its engine, nor srun."""
        found = [pid for pid in processes_with(f"SLURM_JOB_ID={self.id}", f"SLURM_NODEID={node}")
                 if os.path.samefile(f"/proc/{pid}/exe", PROGRAM)
                 and b"\0serve\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(found) == 1
        return found[0]

    def stream(self):
        stream = iter(self.client().completions.create(model="pocket", prompt="Hello", max_tokens=300, stream=True,
                                                       extra_body={"ignore_eos": True}))
        next(stream)
        return stream

    def processes(self):
        return processes_with(f"SLURM_CONF={self.slurm.conf}", f"SLURM_JOB_ID={self.id}")


def test_one_node_answers_as_one_rank_and_scancel_leaves_nothing(slurm, one_rank):
    job = Job(slurm, "serve_one_node.sbatch", "-tp", "2")
    job.wait_ready()
    assert job.answer() == one_rank
    assert len(job.processes()) >= 2  # the door and the engine
    stream = job.stream()
    slurm.ask("scancel", job.id)
    assert [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1] == "length"
    wait_for(lambda: not job.processes(), 15, "the end of all processes")
    wait_for(lambda: job.state() == "CANCELLED", 15, "the end of the job")


def test_two_nodes_answer_as_one_rank_and_scancel_leaves_nothing(slurm, one_rank):
    job = Job(slurm, "serve_two_nodes.sbatch", "-tp", "2", "-pp", "2", "-dcp", "2")
    job.wait_ready()
    assert "1: " in job.text() and "from SLURM" in job.text()
    assert job.key.stat().st_mode & 0o777 == 0o600 and len(job.key.read_text().strip()) == 64
    assert [path.name for path in slurm.dir.glob("shared.key*")] == ["shared.key"]
    assert job.answer() == one_rank
    assert len(job.processes()) >= 4  # a door, a node without one, two engines
    slurm.ask("scancel", job.id)
    wait_for(lambda: not job.processes(), 15, "the end of all processes")
    wait_for(lambda: job.state() == "CANCELLED", 15, "the end of the job")


def test_two_nodes_with_replicas_that_share_experts_answer_as_one_rank(slurm, one_rank):
    """As README.md says: the script's own layout, and behind it flags that win."""
    job = Job(slurm, "serve_two_nodes.sbatch", "-tp", "1", "-pp", "1", "-dcp", "1", "-dp", "4", "-ep", "--enable-eplb")
    job.wait_ready()
    assert "4 replicas ready" in job.text() and "2 of 4 ranks in this process" in job.text()
    assert [job.answer() for _ in range(2)] == [one_rank, one_rank]
    slurm.ask("scancel", job.id)
    wait_for(lambda: not job.processes(), 15, "the end of all processes")


def test_a_task_that_dies_ends_the_job(slurm):
    secret = (slurm.dir / "shared.key").read_text()
    job = Job(slurm, "serve_two_nodes.sbatch", "-tp", "2", "-pp", "2", "-dcp", "2")
    job.wait_ready()
    assert job.key.read_text() == secret
    os.kill(job.door_of(1), signal.SIGKILL)
    wait_for(lambda: job.state() == "FAILED", 15, "the end of the job")
    wait_for(lambda: not job.processes(), 15, "the end of all processes")


def test_a_head_that_is_stopped_finishes_what_runs_and_ends_the_job(slurm):
    job = Job(slurm, "serve_two_nodes.sbatch", "-tp", "2", "-pp", "2", "-dcp", "2")
    job.wait_ready()
    stream = job.stream()
    os.kill(job.door_of(0), signal.SIGTERM)
    assert [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1] == "length"
    wait_for(lambda: job.state() == "COMPLETED", 15, "the end of the job")
    wait_for(lambda: not job.processes(), 15, "the end of all processes")
