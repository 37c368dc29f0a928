// A small part of Markdown as it streams: headings, lists, code, bold. Each finished line is read once, the last one again
// as it grows. All text becomes text nodes.
import { make } from "./api.js";

const longestLine = 4000;  // what is longer is shown piece by piece, as it is
const heading = /^(#{1,6})\s+(.*)/;
const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)/;
const fence = /^\s*```/;

export class Markdown {
  #root;
  #tail = "";
  #kind = "";  // of the open block: "", p, list, code
  #block = null;
  #added = [];

  constructor(root) {
    this.#root = root;
  }

  push(text) {
    for (const node of this.#added) node.remove();
    const lines = (this.#tail + text).split("\n");
    this.#tail = lines.pop();
    for (const line of lines) this.#line(line);
    if (this.#tail.length > longestLine) {
      this.#put(this.#kind ? this.#block : this.#open("p", make("p")), this.#tail);
      this.#tail = "";
    }
    this.#added = [];
    this.#peek();
  }

  // Shows the unfinished line, which the next push takes back.
  #peek() {
    const before = [this.#kind, this.#block];
    if (this.#tail) this.#line(this.#tail, true);
    [this.#kind, this.#block] = before;
  }

  #put(parent, ...nodes) {
    for (const node of nodes) {
      const child = typeof node === "string" ? document.createTextNode(node) : node;
      parent.append(child);
      this.#added.push(child);
    }
  }

  #open(kind, block, parent = this.#root) {
    this.#put(parent, block);
    this.#kind = kind;
    this.#block = block;
    return block;
  }

  #line(line, unfinished = false) {
    if (this.#kind === "code") {
      if (fence.test(line)) this.#kind = "";
      else this.#put(this.#block, line + (unfinished ? "" : "\n"));
      return;
    }
    if (fence.test(line)) {
      const code = make("code");
      this.#open("code", make("pre", { tabindex: "0" }, code));
      this.#block = code;
      return;
    }
    const title = heading.exec(line);
    const entry = item.exec(line);
    if (!line.trim()) {
      this.#kind = "";
    } else if (title) {
      this.#inline(this.#open("", make(`h${Math.min(title[1].length + 2, 6)}`)), title[2]);
    } else if (entry) {
      const name = /\d/.test(entry[2]) ? "ol" : "ul";
      if (this.#kind !== "list" || this.#block.localName !== name) this.#open("list", make(name));
      const point = make("li", entry[1].length > 1 ? { class: "deep" } : {});
      if (name === "ol") point.value = parseInt(entry[2], 10);
      this.#put(this.#block, point);
      this.#inline(point, entry[3]);
    } else if (this.#kind === "list" && line.startsWith(" ") && this.#block.lastChild) {
      this.#inline(this.#block.lastChild, " " + line.trim());
    } else {
      if (this.#kind === "p") this.#put(this.#block, "\n");
      else this.#open("p", make("p"));
      this.#inline(this.#block, line);
    }
  }

  #inline(parent, text) {
    for (const piece of text.split(/(`[^`]+`|\*\*[^*]+\*\*)/)) {
      if (piece.length > 2 && piece.startsWith("`") && piece.endsWith("`")) {
        this.#put(parent, make("code", {}, piece.slice(1, -1)));
      } else if (piece.length > 4 && piece.startsWith("**") && piece.endsWith("**")) {
        this.#put(parent, make("strong", {}, piece.slice(2, -2)));
      } else if (piece) {
        this.#put(parent, piece);
      }
    }
  }
}
