// The state of the server: the memory plan as a picture, the metrics as lines, what went wrong.
import { drawn, make, request } from "./api.js";

const $ = (id) => document.getElementById(id);
const span = 120;   // seconds that the lines show
const samples = [];
let info = null;

const gib = (bytes) => {
  const units = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
  const [name, size] = units.find(([, unit]) => bytes >= unit) ?? ["bytes", 1];
  return `${size === 1 ? bytes : (bytes / size).toFixed(size === 2 ** 30 ? 2 : 1)} ${name}`;
};
const count = (value) => value.toLocaleString("en");

// ---- metrics

const names = {
  generated: "vllm:generation_tokens_total", running: "vllm:num_requests_running", waiting: "vllm:num_requests_waiting",
  cache: "vllm:kv_cache_usage_perc", asked: "vllm:prefix_cache_queries_total", hits: "vllm:prefix_cache_hits_total",
  step: "baltoro:last_step_seconds", steps: "vllm:iteration_tokens_total_count",
};
const rejections = "baltoro:requests_rejected_total";

// Of Prometheus' text: the wanted values, summed over labels, and refusals by reason.
export function readMetrics(text) {
  const wanted = new Map(Object.entries(names).map(([short, name]) => [name, short]));
  const out = { refused: {} };
  for (const line of text.split("\n")) {
    const end = line.search(/[{ ]/);
    if (end <= 0 || line[0] === "#") continue;
    const name = line.slice(0, end);
    const value = Number(line.slice(line.lastIndexOf(" ") + 1));
    if (wanted.has(name)) out[wanted.get(name)] = (out[wanted.get(name)] ?? 0) + value;
    if (name === rejections && value > 0) out.refused[/reason="([^"]*)"/.exec(line)?.[1]] = value;
  }
  return out;
}

const since = (now, before, name) => (before && now[name] >= before[name] ? now[name] - before[name] : null);
const charts = [
  { name: "Tokens/s", of: (now, before) => { const made = since(now, before, "generated"); return made === null ? null : made / (now.at - before.at); }, text: (v) => v.toFixed(v < 10 ? 1 : 0) },
  { name: "Running", of: (now) => now.running, text: String },
  { name: "Waiting", of: (now) => now.waiting, text: String },
  { name: "KV cache in use", of: (now) => 100 * now.cache, text: (v) => `${v.toFixed(1)} %`, top: 100 },
  { name: "Prefix cache hits", of: (now, before) => { const asked = since(now, before, "asked"); return asked ? 100 * since(now, before, "hits") / asked : null; }, text: (v) => `${v.toFixed(0)} %`, top: 100 },
  { name: "Step time", of: (now, before) => (since(now, before, "steps") ? 1000 * now.step : null), text: (v) => `${v.toFixed(v < 10 ? 2 : 0)} ms` },
];

function drawCharts() {
  if (!charts[0].path) {
    for (const chart of charts) {
      chart.path = drawn("path", { class: "line" });
      chart.value = make("b", {}, "–");
      chart.most = make("span");
      const picture = drawn("svg", { viewBox: `0 -2 ${span} 44`, height: "56", preserveAspectRatio: "none", "aria-hidden": "true" }, chart.path);
      $("charts").append(make("figure", {}, make("figcaption", {}, make("span", {}, chart.name), chart.value), picture, make("figcaption", {}, make("span", {}, "2 min"), chart.most)));
    }
  }
  const now = samples.at(-1).at;
  for (const chart of charts) {
    const values = samples.map((sample, index) => chart.of(sample, samples[index - 1]));
    const known = values.filter((value) => value !== null);
    const top = chart.top ?? Math.max(1e-9, ...known);
    let open = false;
    let path = "";
    values.forEach((value, index) => {
      if (value === null) return (open = false);
      const point = `${(span - (now - samples[index].at)).toFixed(1)} ${(40 - (40 * value) / top).toFixed(1)}`;
      path += open ? `L${point}` : `M${point}h.8`;
      open = true;
    });
    chart.path.setAttribute("d", path);
    chart.value.textContent = known.length ? chart.text(known.at(-1)) : "–";
    chart.most.textContent = chart.top || !known.length ? "" : `most ${chart.text(Math.max(...known))}`;
  }
}

export async function pollMetrics(visible) {
  const now = readMetrics(await (await request("metrics")).text());
  now.at = performance.now() / 1000;
  samples.push(now);
  while (samples[0].at < now.at - span) samples.shift();
  if (!visible) return;
  drawCharts();
  for (const used of document.querySelectorAll(".kv-use")) used.setAttribute("width", `${used.dataset.width * now.cache}%`);
  const refused = Object.entries(now.refused).map(([reason, times]) => `${reason.replaceAll("_", " ")} ${times}`);
  $("refused").textContent = refused.length ? `Refused since the start, of all clients: ${refused.join(", ")}.` : "Nothing was refused since the start.";
}

// ---- the plan

function drawStage(stage, index, plan) {
  const parts = [
    ...stage.weights.parts.map((part) => ({ ...part, name: `weights, ${part.name}`, kind: "weight" })),
    ...stage.arenas.parts.map((part) => ({ ...part, name: `arena, ${part.name}`, kind: "arena" })),
    { name: "KV cache", bytes: Math.max(0, stage.kv_cache.bytes), kind: "kv", note: `${count(stage.kv_cache.blocks)} blocks of 64 tokens, ${gib(stage.kv_cache.bytes_per_token)} a token` },
  ];
  const taken = parts.reduce((sum, part) => sum + part.bytes, 0);
  const whole = Math.max(plan.device.bytes, taken);
  const left = whole - taken;
  if (left > 0) parts.push({ name: "not planned", bytes: left, kind: "rest", note: plan.device.gpu ? "beyond --gpu-memory-utilization" : "left to the machine" });
  const bar = drawn("svg", { class: "bar", height: "34", "aria-hidden": "true" });
  const rows = make("tbody");
  let at = 0;
  for (const part of parts) {
    const width = (100 * part.bytes) / whole;
    const place = { x: `${at}%`, y: "0", height: "34" };
    bar.append(drawn("rect", { ...place, width: `${width}%`, class: part.kind }, drawn("title", {}, `${part.name}: ${gib(part.bytes)}`)));
    if (part.kind === "kv") bar.append(drawn("rect", { ...place, y: "24", height: "10", width: "0", class: "kv-use", "data-width": width }));
    at += width;
    const mark = drawn("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, drawn("rect", { width: "10", height: "10", rx: "2", class: part.kind }));
    rows.append(make("tr", {}, make("td", {}, mark), make("td", {}, part.name), make("td", { class: "number" }, gib(part.bytes)), make("td", { class: "quiet" }, part.note)));
  }
  const where = plan.stages.length > 1 ? `Stage ${index}, layers ${stage.first_layer} to ${stage.last_layer}: ` : "";
  const sums = `weights ${gib(stage.weights.bytes)}, arenas ${gib(stage.arenas.bytes)}, KV cache ${gib(stage.kv_cache.bytes)} of ${gib(whole)}`;
  const table = make("details", {}, make("summary", {}, "Parts"), make("div", { class: "wide" }, make("table", {}, rows)));
  table.open = index === 0;
  return make("div", {}, make("p", {}, where + sums), bar, table);
}

function drawInfo() {
  const { engine, plan } = info;
  $("plan").replaceChildren(...(plan ? plan.stages.map((stage, index) => drawStage(stage, index, plan)) : ["This engine is a stand-in without a model: it has no plan."]));
  if (plan?.ranks > 1) $("plan").prepend(make("p", { class: "quiet" }, `Each of ${plan.ranks} ranks; of every stage the fullest one.`));
  const facts = [["Model", info.models.join(", ")], ["Server", `Baltoro ${info.version}, started ${new Date(1000 * info.started).toLocaleString()}`]];
  if (engine) {
    facts.push(["Type", engine.model_type], ["Longest request", `${count(engine.max_model_len)} tokens`],
      ["KV cache", `${count(engine.kv_cache.tokens)} tokens${plan?.data_parallel_size > 1 ? " in each replica" : ""} as ${engine.kv_cache.dtype}, ${gib(engine.kv_cache.bytes)}`],
      ["Prefix cache", info.prefix_caching ? "on" : "off"],
      ["Loaded in", `${engine.load_seconds.toFixed(2)} s`]);
  }
  if (plan) {
    const layout = `TP ${plan.tensor_parallel_size} × PP ${plan.pipeline_parallel_size}, DCP ${plan.decode_context_parallel_size}${plan.data_parallel_size > 1 ? `, ${plan.data_parallel_size} replicas` : ""}${plan.expert_parallel ? ", expert parallel" : ""}`;
    facts.push(["Device", `${plan.device.name}, ${gib(plan.device.bytes)} a rank`], ["Layout", `${layout} (${plan.ranks} ${plan.ranks === 1 ? "rank" : "ranks"})`],
      ["A step", `at most ${count(plan.max_num_seqs)} sequences and ${count(plan.max_num_batched_tokens)} tokens`]);
  }
  $("facts").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

// Whether the server serves, and what it is.
export async function pollInfo() {
  const fresh = await (await request("server_info")).json();
  const changed = JSON.stringify(fresh) !== JSON.stringify(info);
  info = fresh;
  if (changed) drawInfo();
  return info;
}

export async function pollErrors() {
  const { errors } = await (await request("recent_errors")).json();
  const time = (seconds) => new Date(1000 * seconds).toLocaleTimeString();
  $("errors").replaceChildren(...errors.slice(0, 50).map((one) => make("li", {},
    make("span", { class: "quiet" }, `${time(one.time)}  ${one.method} ${one.route}  `),
    make("b", {}, one.streamed ? `${one.status} inside a stream` : String(one.status)), ` ${one.param ? `${one.param}: ` : ""}${one.message}`)));
  if (!errors.length) $("errors").append(make("li", {}, "No request of this client has failed."));
}
