// Requests to the server that this page came from, with the key that this tab knows.

const slot = "baltoro-key";
export const key = () => sessionStorage.getItem(slot) ?? "";
export const setKey = (value) => (value ? sessionStorage.setItem(slot, value) : sessionStorage.removeItem(slot));

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key()) headers.Authorization = `Bearer ${key()}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text;
  try {
    const { error } = JSON.parse(text);
    message = typeof error === "string" ? error : (error.param ? `${error.param}: ` : "") + error.message;
  } catch {
    // What is no JSON is shown as it came.
  }
  throw new ApiError(answer.status, message || answer.statusText);
}

const longestEvent = 1 << 24;

// The data of each server-sent event.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    if (rest.length > longestEvent) throw new ApiError(0, "The server sent an endless line.");
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

// An element with its text and children; text is never read as markup.
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.append(...children);
  return element;
}

export function drawn(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.append(...children);
  return element;
}

export function copyButton(text) {
  const button = make("button", { type: "button", class: "small" }, "Copy");
  button.addEventListener("click", async () => {
    // Browsers give the clipboard to pages of https and of this machine only.
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text());
    } else {
      const area = make("textarea", { class: "unseen" });
      area.value = text();
      button.after(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}
