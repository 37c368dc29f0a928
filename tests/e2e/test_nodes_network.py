"""Nodes in network namespaces of their own, joined by a cable that can be pulled."""
import json
import os
import shutil
import subprocess
import time

import httpx2 as httpx  # which the client library uses
import openai
import pytest

from nodes import SMALL, Cluster, Head, Node, free_port, wait_for
from test_nodes import PROMPTS, QUESTION, ask_all, endless

HEAD, NODE = "10.233.77.1", "10.233.77.2"


def ip(*args):
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` here (iproute2)")
    return subprocess.run(["ip", *args], capture_output=True, text=True, check=False)


class Cable:
    """Two namespaces and a pair of interfaces."""

    def __init__(self):
        self.names = [f"bt{os.getpid()}-{end}" for end in "ab"]
        made = ip("netns", "add", self.names[0])
        if made.returncode != 0:
            pytest.skip("network namespaces are not permitted here: " + made.stderr.strip())
        ip("netns", "add", self.names[1])
        ends = ["veth-bt-a", "veth-bt-b"]
        made = ip("link", "add", ends[0], "netns", self.names[0], "type", "veth",
                  "peer", "name", ends[1], "netns", self.names[1])
        if made.returncode != 0:
            self.remove()
            pytest.skip("pairs of interfaces are not permitted here: " + made.stderr.strip())
        for name, end, address in zip(self.names, ends, (HEAD, NODE)):
            for command in (("addr", "add", address + "/24", "dev", end), ("link", "set", end, "up"),
                            ("link", "set", "lo", "up")):
                done = ip("-n", name, *command)
                if "make-rslave" in done.stderr:  # the root of a chroot is no mount
                    self.remove()
                    pytest.skip("network namespaces cannot be entered here: " + done.stderr.strip())
                assert done.returncode == 0, done.stderr

    def set(self, state):
        assert ip("-n", self.names[0], "link", "set", "veth-bt-a", state).returncode == 0

    def wraps(self):
        return [("ip", "netns", "exec", name) for name in self.names]

    def remove(self):
        for name in self.names:
            ip("netns", "del", name)


@pytest.fixture
def cable():
    made = Cable()
    yield made
    made.remove()


@pytest.fixture
def flags(tmp_path):
    key = tmp_path / "cluster.key"
    key.write_text(os.urandom(32).hex() + "\n")
    key.chmod(0o600)
    # A Unix socket is in reach from every namespace.
    return "--cluster-key-file", str(key), "--uds", str(tmp_path / "door")


def client_of(flags):
    transport = httpx.HTTPTransport(uds=flags[-1])
    return openai.OpenAI(base_url="http://door/v1", api_key="none", max_retries=0,
                         http_client=httpx.Client(transport=transport, timeout=60))


def health(flags):
    try:
        return httpx.Client(transport=httpx.HTTPTransport(uds=flags[-1]), timeout=5).get("http://door/health").status_code
    except httpx.HTTPError:
        return 0


def ready(cluster):
    wait_for(lambda: "Ready: unix socket" in cluster.head.text() or cluster.head.process.poll() is not None, 60, "a start")
    assert cluster.head.process.poll() is None, cluster.head.text()


@pytest.mark.parametrize("layout", [("-tp", "2"), ("-tp", "2", "-pp", "2")], ids=["tp2", "tp2pp2"])
def test_nodes_in_namespaces_answer_as_one_rank(cable, flags, layout):
    alone = Head(*SMALL)
    alone.wait_ready()
    expected = ask_all(alone.client(), PROMPTS)
    alone.stop()
    with Cluster(2, *layout, *flags, master=HEAD, wraps=cable.wraps(), wait=False) as cluster:
        ready(cluster)
        assert ask_all(client_of(flags), PROMPTS) == expected


def text_of_metrics(flags):
    return httpx.Client(transport=httpx.HTTPTransport(uds=flags[-1]), timeout=5).get("http://door/metrics").text


def test_experts_move_between_nodes_while_a_group_answers(cable, flags):
    """Four ranks and replicas that share 16 experts and 8 copies: weights go over the cable every few steps."""
    alone = Head(*SMALL)
    alone.wait_ready()
    expected = ask_all(alone.client(), PROMPTS)
    alone.stop()
    eplb = {"num_redundant_experts": 8, "step_interval": 8, "window_size": 8}
    common = [*SMALL, "--cpu-threads", "1", "-dp", "4", "-dpl", "2", "-ep", "--enable-eplb", "--eplb-config", json.dumps(eplb),
              "-dpa", HEAD, "-dpp", str(free_port()), *flags[:2]]
    wraps = cable.wraps()
    node = Node(*common, "--headless", "-dpr", "2", wrap=wraps[1])
    head = Head(*common, *flags[2:], wrap=wraps[0])
    try:
        assert head.says("Ready: unix socket", 90), head.text() + node.text()
        assert head.says("2 of 4 ranks in this process") and node.says("2 of 4 ranks in this process")
        client = client_of(flags)
        assert ask_all(client, PROMPTS) == expected  # while experts move for the first time
        assert ask_all(client, PROMPTS) == expected

        def counted(name):
            lines = [line for line in text_of_metrics(flags).splitlines() if line.startswith(f"baltoro:eplb_{name}_total{{")]
            return sum(float(line.split()[-1]) for line in lines)
        assert counted("rearrangements") >= 2 and counted("moved_experts") >= 20, head.text()
        assert head.stop() == 0 and node.process.wait(10) == 0, head.text() + node.text()
        assert "ERROR" not in head.text() + node.text()
    finally:
        head.process.kill()
        node.stop()


def test_a_pulled_cable_is_noticed_and_a_cable_put_back_is_used(cable, flags):
    with Cluster(2, "-tp", "2", *flags, master=HEAD, wraps=cable.wraps(), wait=False) as cluster:
        ready(cluster)
        client = client_of(flags)
        before = client.completions.create(**QUESTION).choices[0].text
        stream = endless(client)
        pulled = time.monotonic()
        cable.set("down")
        with pytest.raises(openai.APIError):
            for _ in stream:
                pass
        assert 5 < time.monotonic() - pulled < 14  # nobody says goodbye: ten seconds of silence
        cable.set("up")
        wait_for(lambda: health(flags) == 200, 30, "the engine")
        assert client.completions.create(**QUESTION).choices[0].text == before


def test_a_replica_behind_a_pulled_cable_is_missed_and_comes_back_loaded(cable, flags):
    common = [*SMALL, "--cpu-threads", "1", "-dp", "2", "-dpl", "1", "--data-parallel-address", HEAD, "--head-timeout", "60", *flags[:2]]
    wraps = cable.wraps()
    node = Node(*common, "--headless", "--data-parallel-start-rank", "1", wrap=wraps[1])
    head = Head(*common, *flags[2:], wrap=wraps[0])
    try:
        assert head.says("Ready: unix socket", 60) and head.says("Replica 1 is ready", 60), head.text() + node.text()
        client = client_of(flags)
        there = {"X-data-parallel-rank": "1"}
        before = client.completions.create(**QUESTION, extra_headers=there).choices[0].text
        engine = node.engine_pid()
        stream = iter(client.completions.create(model="pocket", prompt="Hello", max_tokens=3500, stream=True, extra_headers=there,
                                                extra_body={"ignore_eos": True}))
        next(stream)
        pulled = time.monotonic()
        cable.set("down")
        with pytest.raises(openai.APIError):
            for _ in stream:
                pass
        assert 5 < time.monotonic() - pulled < 14
        assert health(flags) == 200 and client.completions.create(**QUESTION).choices[0].text == before
        assert node.says("is gone; it is looked for again")
        cable.set("up")
        assert head.says("Replica 1 is ready again", 30), head.text() + node.text()
        assert client.completions.create(**QUESTION, extra_headers=there).choices[0].text == before
        assert node.engine_pid() == engine
        assert head.stop() == 0 and node.process.wait(10) == 0
    finally:
        head.process.kill()
        node.stop()
