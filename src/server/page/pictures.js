// The pictures of the question that is typed: chosen, dropped or pasted, shown small, and taken away again before they are
// sent. A model that reads text only gets none, and nothing of this is shown for it.
import { make } from "./api.js";

const $ = (id) => document.getElementById(id);
const small = { width: 192, height: 96 };  // of a picture that is shown, in pixels
const list = [];                           // { part, bytes, shown }, of the question that is typed
const files = new WeakMap();               // from a part of a message to the file that it came from
let limits = null;                         // what /server_info says of pictures; null: none is taken
let held = () => [];                       // the pictures of the conversation so far
let reading = Promise.resolve();

const mebibytes = (bytes) => `${(bytes / (1 << 20)).toFixed(bytes < 10 << 20 ? 1 : 0)} MiB`;

// Of all pictures of a request. In its body they are base64, which takes a third more.
const bytesMax = () => Math.min(limits.files_bytes_max, Math.floor(limits.body_bytes_max * 3 / 4));

// A file's kind is told by its first bytes, as the server tells it.
async function typeOf(file) {
  const bytes = new Uint8Array(await file.slice(0, 12).arrayBuffer());
  const text = String.fromCharCode(...bytes);
  if (text.startsWith("\xff\xd8\xff")) return "image/jpeg";
  if (text.startsWith("\x89PNG\r\n\x1a\n")) return "image/png";
  if (text.startsWith("GIF87a") || text.startsWith("GIF89a")) return "image/gif";
  if (text.startsWith("RIFF") && text.slice(8) === "WEBP") return "image/webp";
  return "";
}

function dataUrl(file, type) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(new Blob([file], { type }));
  });
}

// Why a picture of this size would be refused; empty: it would not.
function wrongSize(width, height) {
  const [longer, shorter] = width > height ? [width, height] : [height, width];
  const size = `it has ${width} x ${height} pixels`;
  if (longer > limits.side_max) return `${size}, and a side may have ${limits.side_max}`;
  if (width * height > limits.pixels_max) return `${size}, and ${limits.pixels_max} are the most`;
  if (longer > shorter * limits.aspect_max) return `${size}, and its longer side may be ${limits.aspect_max} times the shorter one`;
  return "";
}

// Drawn rather than loaded, so that this page needs no leave to load pictures.
function draw(bitmap, name) {
  const scale = Math.min(1, small.width / bitmap.width, small.height / bitmap.height);
  const shown = make("canvas", {
    role: "img", "aria-label": `Picture ${name}`, title: name,
    width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)),
  });
  shown.getContext("2d").drawImage(bitmap, 0, 0, shown.width, shown.height);
  return shown;
}

// Throws the reason where the file is not taken.
async function add(file) {
  const others = [...held(), ...list.map((one) => one.part)];
  if (others.length >= limits.count_max) throw `a conversation may have ${limits.count_max} of them: begin a new chat`;
  if (file.size > limits.file_bytes_max) throw `it has ${mebibytes(file.size)}, and ${mebibytes(limits.file_bytes_max)} are the most: make it smaller`;
  const before = others.reduce((sum, part) => sum + files.get(part).bytes, 0);
  if (before + file.size > bytesMax()) throw `all pictures of a conversation may have ${mebibytes(bytesMax())} together: make it smaller or begin a new chat`;
  const type = await typeOf(file);
  if (!type) throw "it is no picture that the server takes: JPEG, PNG, WebP or GIF";
  const bitmap = await createImageBitmap(file).catch(() => {
    throw "it cannot be read as a picture";
  });
  const why = wrongSize(bitmap.width, bitmap.height);
  if (why) throw why;
  const shown = draw(bitmap, file.name);
  bitmap.close();
  const part = { type: "image_url", image_url: { url: await dataUrl(file, type) } };
  files.set(part, { name: file.name, type, bytes: file.size, shown });
  list.push({ part, shown });
}

function show() {
  $("pictures").hidden = list.length === 0;
  $("pictures").replaceChildren(...list.map((one, index) => {
    const { name } = files.get(one.part);
    const remove = make("button", { type: "button", class: "small", "aria-label": `Remove ${name}` }, "×");
    remove.addEventListener("click", () => {
      list.splice(index, 1);
      show();
      $("pictures-error").textContent = "";
      const rest = $("pictures").querySelectorAll("button");
      (rest[Math.min(index, rest.length - 1)] ?? $("draft")).focus();
    });
    return make("li", {}, one.shown, remove);
  }));
}

// One after the other, so that they keep their order.
function take(given) {
  $("pictures-error").textContent = "";
  reading = reading.then(async () => {
    for (const file of given) {
      try {
        if (limits) await add(file);
      } catch (why) {
        $("pictures-error").append(make("span", {}, `${file.name}: ${why instanceof Error ? why.message : why}. `));
      }
      show();
    }
    $("said").textContent = `${list.length} ${list.length === 1 ? "picture" : "pictures"} for the question.`;
  });
}

export const settled = () => reading;

// What `takePictures` would give.
export const drafted = () => list.map((one) => one.part);

// The parts of a message's content; none of them is a part of the next question.
export function takePictures() {
  const parts = drafted();
  list.length = 0;
  $("pictures-error").textContent = "";
  show();
  return parts;
}

export function putBack(parts) {
  for (const part of parts) list.push({ part, shown: files.get(part).shown });
  show();
}

// The small pictures of a message.
export const shownOf = (parts) => parts.map((part) => files.get(part).shown);

// A request with files in the places of pictures, for programs that people copy.
export class PictureFile {
  constructor({ name, type }) {
    this.name = name;
    this.type = type;
  }
}

export function withFiles(value) {
  if (files.has(value)) return { type: "image_url", image_url: { url: new PictureFile(files.get(value)) } };
  if (Array.isArray(value)) return value.map(withFiles);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, withFiles(item)]));
}

export function setLimits(facts) {
  if (JSON.stringify(facts) === JSON.stringify(limits)) return;
  limits = facts;
  for (const id of ["add", "picture-limits"]) $(id).hidden = !limits;
  if (!limits) return void takePictures();
  const count = limits.count_max === 1 ? "1 picture" : `${limits.count_max} pictures`;
  $("picture-limits").textContent = `Paste, drop or add up to ${count} a conversation, ${mebibytes(bytesMax())} together.`;
}

// `pictures`: gives the parts with pictures of the conversation so far.
export function startPictures(pictures) {
  held = pictures;
  const open = () => limits !== null && !$("view-chat").hidden;
  $("add").addEventListener("click", () => $("files").click());
  $("files").addEventListener("change", () => {
    take([...$("files").files]);
    $("files").value = "";  // else the same file again is no change
    $("draft").focus();
  });
  document.addEventListener("paste", (event) => {
    const elsewhere = event.target.matches?.("input, textarea") && event.target !== $("draft");
    const given = [...event.clipboardData.files];
    // What comes with text too, as cells of a table do, is meant as text.
    if (!open() || elsewhere || given.length === 0 || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    take(given);
  });
  const dropping = (on) => $("ask").classList.toggle("dropping", on);
  document.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();  // else the browser would leave the page for the file
    event.dataTransfer.dropEffect = open() ? "copy" : "none";
    dropping(open());
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) dropping(false);
  });
  document.addEventListener("drop", (event) => {
    dropping(false);
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    if (open()) take([...event.dataTransfer.files]);
  });
}
