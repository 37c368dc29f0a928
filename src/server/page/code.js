// A request as commands and programs to copy. The key is never in them, and pictures are read from their files.
import { PictureFile, withFiles } from "./pictures.js";

const environment = "BALTORO_API_KEY";

// How a language writes values: JSON's, with a comma behind the last item and words of its own where it has these.
const json = { step: "  ", words: { null: "null", true: "true", false: "false" }, last: "" };

function written(value, indent, style) {
  if (value instanceof PictureFile) return style.picture(value);
  if (value === null || typeof value === "boolean") return style.words[value];
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = indent + style.step;
  const list = Array.isArray(value);
  const items = list
    ? value.map((item) => inner + written(item, inner, style))
    : Object.entries(value).map(([name, item]) => `${inner}${JSON.stringify(name)}: ${written(item, inner, style)}`);
  const [open, close] = list ? "[]" : "{}";
  return items.length ? `${open}\n${items.join(",\n")}${style.last}\n${indent}${close}` : open + close;
}

const holdsFiles = (value) => value instanceof PictureFile || (value !== null && typeof value === "object" && Object.values(value).some(holdsFiles));
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// What the shell puts in the place of a mark is no part of the text that is escaped for it.
function withPictures(body) {
  const pictures = [];
  const picture = (file) => {
    pictures.push(`"data:${file.type};base64,$(base64 < ${quoted(file.name)} | tr -d '\\n')"`);
    return "\0";
  };
  const text = written(body, "", { ...json, picture }).replace(/[\\$`]/g, "\\$&");
  return text.replaceAll("\0", () => pictures.shift());
}

export function curl(body, base, keys) {
  const sent = withFiles({ ...body, stream: true });
  const head = [
    `curl -sSN ${base}v1/chat/completions`,
    "  -H 'Content-Type: application/json'",
    ...(keys ? [`  -H "Authorization: Bearer $${environment}"`] : []),
  ];
  if (!holdsFiles(sent)) return [...head, `  -d ${quoted(written(sent, "", json))}`].join(" \\\n");
  // A picture may be longer than an argument.
  return `${[...head, "  -d @- <<REQUEST"].join(" \\\n")}\n${withPictures(sent)}\nREQUEST`;
}

const pythonStyle = {
  step: "    ", words: { null: "None", true: "True", false: "False" }, last: ",",
  picture: (file) => `"data:${file.type};base64," + base64.b64encode(open(${JSON.stringify(file.name)}, "rb").read()).decode()`,
};

export function python(body, base, keys) {
  const sent = withFiles({ ...body, stream: true });
  const fields = Object.entries(sent).map(([name, value]) => `    ${name}=${written(value, "    ", pythonStyle)},\n`);
  return `${holdsFiles(sent) ? "import base64\n" : ""}${keys ? "import os\n" : ""}from openai import OpenAI

client = OpenAI(base_url="${base}v1", api_key=${keys ? `os.environ["${environment}"]` : '"none"'})
stream = client.chat.completions.create(
${fields.join("")})
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)${body.tools ? `
        for call in choice.delta.tool_calls or []:
            print(call.function.name or "", call.function.arguments or "", end="")` : ""}
print()
`;
}

const javascriptStyle = {
  ...json,
  picture: (file) => `"data:${file.type};base64," + readFileSync(${JSON.stringify(file.name)}).toString("base64")`,
};

export function javascript(body, base, keys) {
  const sent = withFiles({ ...body, stream: true });
  return `${holdsFiles(sent) ? 'const { readFileSync } = await import("node:fs");\n' : ""}const answer = await fetch("${base}v1/chat/completions", {
  method: "POST",
  headers: { "Content-Type": "application/json"${keys ? `, Authorization: \`Bearer \${process.env.${environment}}\`` : ""} },
  body: JSON.stringify(${written(sent, "  ", javascriptStyle)}),
});
if (!answer.ok) throw new Error(await answer.text());
let rest = "";
let text = "";
for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + piece).split("\\n");
  rest = lines.pop();
  for (const line of lines) {
    if (line.startsWith("data: {")) text += JSON.parse(line.slice(6)).choices[0]?.delta.content ?? "";
  }
}
console.log(text);
`;
}
