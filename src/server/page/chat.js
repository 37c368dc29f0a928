// The conversation: what was said, how it is asked for, how an answer is drawn while it comes.
import { ApiError, copyButton, events, make, request } from "./api.js";
import { Markdown } from "./markdown.js";
import { drafted, putBack, settled, shownOf, startPictures, takePictures } from "./pictures.js";

const $ = (id) => document.getElementById(id);
const messages = [];  // as the API takes them
let running = null;   // the AbortController of an answer under way
let last = null;      // the newest answer: its article, and whether it is among the messages
let question = null;  // the newest question: its article, text and pictures

const exampleTool = [{
  type: "function",
  function: {
    name: "get_weather", description: "Get the weather of a city",
    parameters: { type: "object", required: ["city"], properties: { city: { type: "string", description: "City name" } } },
  },
}];

function tools() {
  const text = $("tools").value.trim();
  let list = [];
  let why = "";
  try {
    if (text) list = JSON.parse(text);
    if (!Array.isArray(list)) why = "Tools are a list: [ ... ]";
  } catch (error) {
    why = `Tools are not JSON: ${error.message}`;
  }
  $("tools-error").textContent = why;
  $("tools").toggleAttribute("aria-invalid", why !== "");
  if (why) throw new ApiError(0, why);
  return list;
}

const isPicture = (part) => part.type === "image_url";

// A message's content. Pictures go first, so that another question about the same ones begins as this one does.
function content(text, pictures) {
  return pictures.length ? [...pictures, ...(text ? [{ type: "text", text }] : [])] : text;
}

// The body of the next request, with what is typed or without. Throws where the tools are no list of JSON.
export function body(draft = "", pictures = []) {
  const out = { model: $("name").value, messages: [] };
  if ($("system").value.trim()) out.messages.push({ role: "system", content: $("system").value });
  out.messages.push(...messages);
  if (draft || pictures.length) out.messages.push({ role: "user", content: content(draft, pictures) });
  for (const [id, field] of [["temperature", "temperature"], ["top-p", "top_p"], ["max-tokens", "max_tokens"]]) {
    if ($(id).value !== "") out[field] = Number($(id).value);
  }
  const declared = tools();
  if (declared.length) out.tools = declared;
  if (!$("thinking").checked) out.reasoning_effort = "none";
  return out;
}

// Draws an answer; what comes between two frames is drawn at once.
class Drawing {
  constructor() {
    this.article = make("article", { class: "assistant" });
    this.thought = make("div");
    this.summary = make("summary", {}, "Thinking ...");
    this.thinking = make("details", { class: "thinking", hidden: "" }, this.summary, this.thought);
    this.text = make("div", { class: "text" });
    this.article.append(this.thinking, this.text);
    this.markdown = new Markdown(this.text);
    this.waiting = { thought: "", text: "" };
    this.message = { role: "assistant", content: "" };
    this.calls = [];
    this.started = performance.now();
    this.first = null;
    this.answered = null;
    this.frame = 0;
    $("log").append(this.article);
  }

  take(delta) {
    const thought = delta.reasoning ?? "";
    const text = delta.content ?? "";
    const now = performance.now();
    if (thought || text || delta.tool_calls) this.first ??= now;
    if (text || delta.tool_calls) this.answered ??= now;
    if (thought) this.message.reasoning = (this.message.reasoning ?? "") + thought;
    this.message.content += text;
    this.waiting.thought += thought;
    this.waiting.text += text;
    for (const piece of delta.tool_calls ?? []) {
      const call = (this.calls[piece.index] ??= this.#begin());
      call.value.id ||= piece.id ?? "";
      call.value.function.name += piece.function?.name ?? "";
      call.value.function.arguments += piece.function?.arguments ?? "";
    }
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  #begin() {
    const call = { value: { id: "", type: "function", function: { name: "", arguments: "" } } };
    call.title = make("code");
    call.shown = make("pre", { class: "code", "aria-label": "Arguments" });
    call.box = make("div", { class: "call" }, "Calls ", call.title, call.shown);
    this.article.append(call.box);
    return call;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const log = $("log");
    const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    if (this.waiting.thought) {
      this.thinking.hidden = false;
      this.thought.append(this.waiting.thought);
    }
    if (this.waiting.text) this.markdown.push(this.waiting.text);
    this.waiting = { thought: "", text: "" };
    if (this.answered && this.first) {
      this.summary.textContent = `Thought for ${((this.answered - this.first) / 1000).toFixed(2)} s`;
    }
    for (const call of this.calls) {
      call.title.textContent = call.value.function.name;
      call.shown.textContent = call.value.function.arguments;
    }
    if (follow) log.scrollTop = log.scrollHeight;
  }

  // Of a whole answer: how it went, and what one can do with it.
  end(why, usage) {
    this.draw();
    if (!this.answered && this.first) this.summary.textContent = "Thought, and did not answer";
    for (const call of this.calls) {
      try {
        call.shown.textContent = JSON.stringify(JSON.parse(call.value.function.arguments), null, 2);
      } catch {
        // Arguments that were cut off stay as they are.
      }
    }
    const seconds = (performance.now() - (this.first ?? this.started)) / 1000;
    const facts = [];
    if (usage) {
      facts.push(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens`);
      const cached = usage.prompt_tokens_details?.cached_tokens;
      if (cached) facts.push(`${cached} cached`);
      if (usage.completion_tokens > 1) facts.push(`${((usage.completion_tokens - 1) / seconds).toFixed(0)} tokens/s`);
    }
    if (this.first) facts.push(`first after ${((this.first - this.started) / 1000).toFixed(2)} s`);
    this.meta = make("div", { class: "meta" }, make("span", {}, [...facts, why].join(" · ")));
    this.again = make("button", { type: "button", class: "small" }, "Regenerate");
    this.again.addEventListener("click", regenerate);
    if (this.message.content) this.meta.append(copyButton(() => this.message.content));
    this.meta.append(this.again);
    this.article.append(this.meta);
    $("log").scrollTop = $("log").scrollHeight;
  }

  fail(error) {
    this.article.append(make("p", { class: "error", role: "alert" }, error.status ? `${error.status}: ${error.message}` : error.message));
  }
}

// For each call a field for what the tool would say.
function askResults(drawing) {
  const form = make("form", { class: "results" });
  const fields = drawing.calls.map((call, index) => {
    const id = `result-${messages.length}-${index}`;
    const field = make("textarea", { id, rows: "1", class: "code" });
    form.append(make("label", { for: id }, `Result of ${call.value.function.name}`), field);
    return field;
  });
  form.append(make("div", { class: "row" }, make("button", {}, "Send results")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!ready()) return;
    drawing.calls.forEach((call, index) => messages.push({ role: "tool", tool_call_id: call.value.id, content: fields[index].value }));
    for (const field of fields) field.readOnly = true;
    form.lastChild.remove();
    answer();
  });
  drawing.article.insertBefore(form, drawing.meta);
}

function setRunning(controller) {
  const wasOnStop = document.activeElement === $("stop");
  const wasOnSend = document.activeElement === $("send");
  running = controller;
  $("send").hidden = controller !== null;
  $("stop").hidden = controller === null;
  $("log").setAttribute("aria-busy", String(controller !== null));
  if (controller && wasOnSend) $("stop").focus();
  if (!controller && wasOnStop) $("draft").focus();
}

async function answer() {
  const asked = { ...body(), stream: true, stream_options: { include_usage: true } };
  last?.drawing.again?.remove();
  last?.drawing.edit?.remove();
  const controller = new AbortController();
  setRunning(controller);
  $("said").textContent = "The model is answering.";
  const drawing = new Drawing();
  last = { drawing, kept: false };
  let why = "";
  let usage = null;
  try {
    const stream = await request("v1/chat/completions", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked), signal: controller.signal,
    });
    for await (const chunk of events(stream)) {
      if (chunk.error) throw new ApiError(chunk.error.code ?? 0, chunk.error.message);
      usage = chunk.usage ?? usage;
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      drawing.take(choice.delta);
      why = choice.finish_reason ?? why;
    }
    if (!why) throw new ApiError(0, "The answer broke off.");
  } catch (error) {
    why = error.name === "AbortError" ? "stopped" : "error";
    if (why === "error") {
      drawing.fail(error instanceof ApiError ? error : new ApiError(0, `The connection broke: ${error.message}`));
      if (error.status === 401) dispatchEvent(new Event("baltoro-key"));
    }
  }
  setRunning(null);
  if (last?.drawing !== drawing) return;  // another conversation has begun
  const whole = why !== "stopped" && why !== "error";
  if (whole && drawing.calls.length) drawing.message.tool_calls = drawing.calls.map((call) => call.value);
  if (drawing.message.content || drawing.message.tool_calls) {
    messages.push(drawing.message);
    last.kept = true;
  }
  drawing.end(why, usage);
  if (why === "error" && !last.kept && question && messages.at(-1)?.role === "user") {
    drawing.edit = make("button", { type: "button", class: "small" }, "Edit the question");
    drawing.edit.addEventListener("click", edit);
    drawing.again.before(drawing.edit);
  }
  if (drawing.message.tool_calls) askResults(drawing);
  const called = drawing.calls.map((call) => call.value.function.name).join(", ");
  $("said").textContent = [drawing.message.content.slice(0, 4000), called && `Calls ${called}`, why === "stop" ? "" : why].filter(Boolean).join(". ");
}

// Nothing is under way, and the parameters make a request.
function ready() {
  if (running) return false;
  try {
    tools();
    return true;
  } catch {
    $("parameters").open = true;
    $("tools").focus();
    return false;
  }
}

function regenerate() {
  if (!last || !ready()) return;
  if (last.kept) messages.pop();
  last.drawing.article.remove();
  $("draft").focus();
  answer();
}

// Takes back a question that got no answer, as one with a picture that the server refuses never would.
function edit() {
  if (!ready()) return;
  messages.pop();
  last.drawing.article.remove();
  question.article.remove();
  $("draft").value = [question.text, $("draft").value].filter(Boolean).join("\n");
  putBack(question.pictures);
  last = question = null;
  $("draft").focus();
}

async function ask() {
  await settled();  // files that were chosen are part of the question
  const text = $("draft").value.trim();
  if (!(text || drafted().length) || !ready()) return;
  const pictures = takePictures();
  messages.push({ role: "user", content: content(text, pictures) });
  const shown = pictures.length ? [make("div", { class: "pictures" }, ...shownOf(pictures))] : [];
  question = { text, pictures, article: make("article", { class: "user" }, ...shown, text) };
  $("log").append(question.article);
  $("draft").value = "";
  answer();
}

function fresh() {
  running?.abort();
  messages.length = 0;
  last = question = null;
  $("log").replaceChildren();
  $("said").textContent = "";
  $("draft").focus();
}

export function startChat() {
  $("parameters").open = innerWidth > 800;
  startPictures(() => messages.flatMap((message) => (Array.isArray(message.content) ? message.content.filter(isPicture) : [])));
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  $("draft").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  $("stop").addEventListener("click", () => running?.abort());
  $("fresh").addEventListener("click", fresh);
  $("settings").addEventListener("submit", (event) => event.preventDefault());
  $("settings").addEventListener("reset", () => {
    $("tools-error").textContent = "";
    $("tools").removeAttribute("aria-invalid");
  });
  $("example").addEventListener("click", () => ($("tools").value = JSON.stringify(exampleTool, null, 2)));
}
