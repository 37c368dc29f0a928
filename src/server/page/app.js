// The page: its views, the API key, and what is asked for again and again.
import { ApiError, copyButton, key, make, request, setKey } from "./api.js";
import { body, startChat } from "./chat.js";
import { curl, javascript, python } from "./code.js";
import { drafted, setLimits } from "./pictures.js";
import { pollErrors, pollInfo, pollMetrics } from "./state.js";

const $ = (id) => document.getElementById(id);
const keys = document.body.dataset.keys === "yes";
const note = "baltoro-note";
const refusal = "The server no longer takes this key.";
let open = false;  // the server has let this tab in

function view() {
  const wanted = location.hash.slice(1);
  return ["chat", "server", "code"].includes(wanted) ? wanted : "chat";
}

function show() {
  $("view-key").hidden = open;
  for (const name of ["chat", "server", "code"]) $(`view-${name}`).hidden = !open || view() !== name;
  for (const link of document.querySelectorAll("nav a[href^='#']")) {
    if (link.hash === `#${view()}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!open) $("key").focus();
  else if (view() === "chat" && !matchMedia("(pointer: coarse)").matches) $("draft").focus();
  else if (view() === "code") showCode();
}

function showCode() {
  const base = new URL(".", document.baseURI).href;
  let asked;
  try {
    asked = body($("draft").value.trim(), drafted());
  } catch (error) {
    return $("code").replaceChildren(make("p", { class: "error" }, error.message));
  }
  if (!asked.messages.some((message) => message.role === "user")) asked.messages.push({ role: "user", content: "Hello!" });
  const parts = { curl, "Python, with the openai package": python, JavaScript: javascript };
  $("code").replaceChildren(...Object.entries(parts).map(([name, write]) => {
    const text = write(asked, base, keys);
    return make("section", {}, make("h2", {}, name, copyButton(() => text)), make("pre", { tabindex: "0", "aria-label": name }, make("code", {}, text)));
  }));
  if (asked.messages.some((message) => Array.isArray(message.content))) {
    $("code").append(make("p", { class: "quiet" }, "Pictures are read from files of their names in the present folder."));
  }
  if (keys) $("code").append(make("p", { class: "quiet" }, "The key is read from the environment variable BALTORO_API_KEY."));
}

// Starts anew without the key, so that nothing of the server stays in sight.
function lock(why) {
  setKey("");
  sessionStorage.setItem(note, why);
  location.reload();
}

function setHealth(text, away) {
  if ($("health").textContent !== text) $("health").textContent = text;
  $("health").classList.toggle("away", away);
}

async function enter() {
  const { data } = await (await request("v1/models")).json();
  $("name").replaceChildren(...data.map((model) => make("option", {}, model.id)));
  $("model").textContent = data[0].id;
  $("forget").hidden = !keys;
  open = true;
  show();
  poll(true);
}

// Once a second where the lines are looked at, else every five seconds; not in a hidden tab. One at a time.
let polling = false;
let ticks = 0;
async function poll(all = false) {
  if (!open || polling || document.hidden) return;
  const server = view() === "server";
  const fifth = all || ticks++ % 5 === 0;
  if (!server && !fifth) return;
  polling = true;
  try {
    await pollMetrics(server);
    if (fifth) {
      const info = await pollInfo();
      setLimits(info.pictures);
      setHealth(info.status, info.status !== "serving");
      if (server) await pollErrors();
    }
  } catch (error) {
    if (error.status === 401) lock(refusal);
    else if (error instanceof ApiError) setHealth(error.message, true);
    else throw error;
  } finally {
    polling = false;
  }
}

startChat();
$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  setKey($("key").value.trim());
  $("key").value = "";
  try {
    await enter();
    $("key-error").textContent = "";
  } catch (error) {
    setKey("");
    $("key-error").textContent = error.status === 401 ? "This is not one of the server's keys." : error.message;
  }
});
$("forget").addEventListener("click", () => lock(""));
addEventListener("hashchange", () => {
  show();
  poll(true);
});
addEventListener("baltoro-key", () => lock(refusal));
addEventListener("visibilitychange", () => poll(true));
setInterval(poll, 1000);
if (keys && !key()) {
  $("key-error").textContent = sessionStorage.getItem(note) ?? "";
  sessionStorage.removeItem(note);
  show();
} else {
  enter().catch((error) => {
    if (error.status === 401) lock(refusal);
    else setHealth(`${error.message} Reload the page to try again.`, true);
  });
}
