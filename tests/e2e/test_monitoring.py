"""examples/monitoring and docs/monitoring.md against what a server with the pocket model says at /metrics: every expression
parses and asks only for names, labels and values that are there, and the page has every metric. When the alerts fire is
tested in tests/monitoring."""
import json
import os
import re
import signal
import time
import urllib.error
import urllib.request

import promql_parser
import pytest
import yaml
from conftest import ROOT, Server
from prometheus_client.parser import text_string_to_metric_families

FOLDER = ROOT / "examples/monitoring"
RULES = [rule for name in ("recording.yml", "alerts.yml")
         for group in yaml.safe_load((FOLDER / name).read_text())["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
DASHBOARD = json.loads((FOLDER / "grafana/dashboards/baltoro.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# What a scrape adds to every series.
SCRAPED = {"job": {"baltoro"}, "instance": None}


def dashboard_expressions():
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for note in DASHBOARD["annotations"]["list"]:
        yield note["name"], note["expr"], note["titleFormat"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            yield variable["name"], selector, "{{" + label + "}}"


def rule_expressions():
    for rule in RULES:
        texts = " ".join([*rule.get("annotations", {}).values(), *rule.get("labels", {}).values()])
        yield rule.get("record") or rule["alert"], rule["expr"], re.sub(r"\$labels\.(\w+)", r"{{\1}}", texts)


EXPRESSIONS = [*rule_expressions(), *dashboard_expressions()]


@pytest.fixture(scope="module")
def families(server, client, model):
    """What /metrics says once every kind of exchange has been there."""
    client.chat.completions.create(model=model, messages=[{"role": "user", "content": "What is 2 + 3?"}], max_tokens=20)
    for _ in client.completions.create(model=model, prompt="Hello", max_tokens=4, stream=True):
        pass
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(server.url + "/v1/nothing")
    return scrape(server.url)


@pytest.fixture(scope="module")
def series(families):
    """Sample names, and for each its labels with the values they have. None stands for any value: what depends on which
    requests came."""
    known = {"up": dict(SCRAPED)}
    for family in families:
        for sample in family.samples:
            labels = known.setdefault(sample.name, dict(SCRAPED))
            for name, value in sample.labels.items():
                if family.name.startswith("http_") and name != "status":
                    labels[name] = None
                else:
                    labels.setdefault(name, set()).add(value)
    for name in known:
        if name == "http_requests_total":
            known[name]["status"] |= {"4xx", "5xx"}
    for rule in RULES:  # a recorded series has the labels of its expression
        if "record" in rule:
            known[rule["record"]] = labels_of(promql_parser.parse(rule["expr"]), known, rule["record"])
    return known


def scrape(url):
    with urllib.request.urlopen(url + "/metrics") as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def values(url):
    """The sum over the series of each name; of a process by its name."""
    out = {}
    for family in scrape(url):
        for sample in family.samples:
            process = sample.labels.get("process")
            name = f"{sample.name} {process}" if process else sample.name
            out[name] = out.get(name, 0) + sample.value
    return out


def eventually(check, seconds=30):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def labels_of(node, known, where):
    """The labels (with their values) that an expression's result may have, None of a number; fails where it asks for what is
    not there."""
    kind = type(node).__name__
    if kind == "VectorSelector":
        assert node.name in known, f"{where}: no metric {node.name}"
        labels = dict(known[node.name])
        assert not node.matchers.or_matchers
        for matcher in node.matchers.matchers:
            assert matcher.name in labels, f"{where}: {node.name} has no label {matcher.name}"
            values = labels[matcher.name]
            patterns = (promql_parser.MatchOp.Re, promql_parser.MatchOp.NotRe)
            wanted = set(matcher.value.split("|")) if matcher.op in patterns else {matcher.value}
            assert values is None or wanted <= values, f"{where}: {node.name} has no {matcher.name}={wanted - values}"
        return labels
    if kind == "MatrixSelector":
        return labels_of(node.vector_selector, known, where)
    if kind in ("ParenExpr", "UnaryExpr", "SubqueryExpr"):
        return labels_of(node.expr, known, where)
    if kind == "Call":
        found = [labels for arg in node.args if (labels := labels_of(arg, known, where)) is not None]
        if not found:
            return None
        out = dict(found[0])
        if node.func.name == "histogram_quantile":
            assert "le" in out, f"{where}: histogram_quantile without le"
            out.pop("le")
        return out
    if kind == "AggregateExpr":
        inner = labels_of(node.expr, known, where)
        assert node.modifier is not None and node.modifier.type == promql_parser.AggModifierType.By, f"{where}: only `by` here"
        for label in node.modifier.labels:
            assert label in inner, f"{where}: {label} is no label of {node.expr}"
        return {label: inner[label] for label in node.modifier.labels}
    if kind == "BinaryExpr":
        sides = [labels for side in (node.lhs, node.rhs) if (labels := labels_of(side, known, where)) is not None]
        if len(sides) == 2:
            if node.modifier is not None and node.modifier.matching is not None:
                for label in node.modifier.matching.labels:
                    assert label in sides[0] and label in sides[1], f"{where}: {label} is not on both sides"
            else:
                assert set(sides[0]) == set(sides[1]), f"{where}: the two sides of {node.op} have different labels"
        return sides[0] if sides else None
    assert kind in ("NumberLiteral", "StringLiteral"), f"{where}: {kind}"
    return None


@pytest.mark.parametrize("where, expression, legend", EXPRESSIONS, ids=[f"{i}-{e[0]}" for i, e in enumerate(EXPRESSIONS)])
def test_expression_asks_for_what_the_server_has(series, where, expression, legend):
    expression = expression.replace("$__rate_interval", "1m").replace('instance=~"$instance"', 'instance=~".*"')
    assert "$" not in expression
    labels = labels_of(promql_parser.parse(expression), series, where)
    for label in re.findall(r"\{\{ ?(\w+) ?\}\}", legend):
        assert label in labels, f"{where}: the result has no label {label} for its text"


def test_what_is_not_there_is_noticed(series):
    for wrong in ("vllm:no_such_metric", 'vllm:num_requests_running{pod="x"}', "sum by (pod) (vllm:num_requests_running)",
                  'baltoro:requests_rejected_total{reason="tired"}', "vllm:num_requests_running / on (reason) up"):
        with pytest.raises(AssertionError):
            labels_of(promql_parser.parse(wrong), series, wrong)


def test_alerts_say_what_happened_and_what_to_do():
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS) >= 12
    for alert in ALERTS:
        assert set(alert["annotations"]) == {"summary", "description", "action"}, alert["alert"]
        assert alert["labels"]["severity"] in ("page", "ticket"), alert["alert"]


def test_every_alert_fires_in_a_test():
    fired = set(re.findall(r'alertname="(\w+)"', (ROOT / "tests/monitoring/alerts_test.yml").read_text()))
    assert fired == {alert["alert"] for alert in ALERTS}


def test_panels_of_the_dashboard_do_not_overlap():
    taken = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_steps_and_processes_are_counted(server, client, model):
    time.sleep(0.3)  # the engine counts for its door ten times a second: what the tests before asked is told by then
    before = values(server.url)
    client.completions.create(model=model, prompt=[5] * 300, max_tokens=8)
    eventually(lambda: values(server.url)["vllm:iteration_tokens_total_count"] >= before["vllm:iteration_tokens_total_count"] + 8)
    after = values(server.url)
    assert after["baltoro:engine_ready"] == 1
    assert after["baltoro:prompt_tokens_computed_total"] - before["baltoro:prompt_tokens_computed_total"] in range(44, 301)
    busy = after["baltoro:step_seconds_total"] - before["baltoro:step_seconds_total"]
    assert 0 < busy < time.time() - after["process_start_time_seconds EngineCore"]
    for process in ("APIServer", "EngineCore"):
        assert after[f"process_cpu_seconds_total {process}"] > 0
        assert 2 < after[f"process_open_fds {process}"] < after[f"process_max_fds {process}"]
    assert after["process_resident_memory_bytes EngineCore"] > after["process_resident_memory_bytes APIServer"] > 1 << 20


def test_an_engine_that_dies_is_seen():
    server = Server("--load-format", "stand-in")
    try:
        assert values(server.url)["baltoro:engine_ready"] == 1
        eventually(lambda: "process_open_fds EngineCore" in values(server.url))
        os.kill(server.engine_pid(), signal.SIGKILL)
        seen = []
        eventually(lambda: seen.append(values(server.url)) or seen[-1]["baltoro:engine_ready"] == 0)
        eventually(lambda: seen.append(values(server.url)) or seen[-1]["baltoro:engine_ready"] == 1)
        assert any("process_open_fds EngineCore" not in one for one in seen)
        assert seen[-1]["baltoro:engine_restarts_total"] == 1
        eventually(lambda: "process_open_fds EngineCore" in values(server.url))
    finally:
        server.stop()


def rows_of_the_page():
    page = (ROOT / "docs/monitoring.md").read_text()
    table = page[page.index("## All metrics"):page.index("## What differs")]
    return {name: (kind, labels, meaning) for name, kind, labels, meaning in
            re.findall(r"^\| `([\w:]+)` \| (counter|gauge|histogram|summary) \| (.*?) \| (.*?) \|$", table, re.M)}


@pytest.fixture(scope="module")
def families_of_drafts():
    """Those that are there with --speculative-config and --enable-eplb alone."""
    server = Server("-sc", '{"method": "ngram", "num_speculative_tokens": 2}', "-tp", "2", "-ep", "--enable-eplb")
    try:
        return [family for family in scrape(server.url) if re.search(":(spec_decode|eplb)", family.name)]
    finally:
        server.stop()


def test_the_page_has_every_metric_and_no_other(families, families_of_drafts):
    told = {}
    assert not any(re.search(":(spec_decode|eplb)", family.name) for family in families)
    for family in [*families, *families_of_drafts]:
        labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
        name = family.name + ("_total" if family.type == "counter" else "")
        told[name] = (family.type, ", ".join(f"`{label}`" for label in labels), family.documentation)
    assert rows_of_the_page() == told
