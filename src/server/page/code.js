// A request as commands and programs to copy. The key is never in them.

const environment = "BALTORO_API_KEY";

function pythonValue(value, indent) {
  const inner = indent + "    ";
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const list = Array.isArray(value);
  const items = list
    ? value.map((item) => inner + pythonValue(item, inner))
    : Object.entries(value).map(([name, item]) => `${inner}${JSON.stringify(name)}: ${pythonValue(item, inner)}`);
  const [open, close] = list ? "[]" : "{}";
  return items.length ? `${open}\n${items.join(",\n")},\n${indent}${close}` : open + close;
}

export function curl(body, base, keys) {
  const data = JSON.stringify({ ...body, stream: true }, null, 2).replaceAll("'", "'\\''");
  return [
    `curl -sSN ${base}v1/chat/completions`,
    "  -H 'Content-Type: application/json'",
    ...(keys ? [`  -H "Authorization: Bearer $${environment}"`] : []),
    `  -d '${data}'`,
  ].join(" \\\n");
}

export function python(body, base, keys) {
  const fields = Object.entries({ ...body, stream: true }).map(([name, value]) => `    ${name}=${pythonValue(value, "    ")},\n`);
  return `${keys ? "import os\n" : ""}from openai import OpenAI

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

export function javascript(body, base, keys) {
  return `const answer = await fetch("${base}v1/chat/completions", {
  method: "POST",
  headers: { "Content-Type": "application/json"${keys ? `, Authorization: \`Bearer \${process.env.${environment}}\`` : ""} },
  body: JSON.stringify(${JSON.stringify({ ...body, stream: true }, null, 2).replaceAll("\n", "\n  ")}),
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
