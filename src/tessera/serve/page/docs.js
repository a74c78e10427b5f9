// The API's own page: the schema as text, made here, with nothing from elsewhere.

const make = (name, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
};

/** A paragraph's words; `in backticks` is code, and **so** is strong. */
const words = (text) => (text ?? "").split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) =>
  part.startsWith("`") ? make("code", { textContent: part.slice(1, -1) })
    : part.startsWith("**") ? make("strong", { textContent: part.slice(2, -2) }) : part);

const paragraphs = (text) => (text ?? "").trim().split(/\n\s*\n/).filter(Boolean).map((part) => make("p", {}, ...words(part)));

function typeOf(schema, all) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map((one) => typeOf(one, all)).join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const !== undefined) return String(schema.const);
  if (schema.type === "array") return `list of ${typeOf(schema.items, all) || "values"}`;
  return schema.format === "binary" || schema.contentMediaType ? "file" : schema.type ?? "any";
}

const resolve = (schema, all) => (schema?.$ref ? all[schema.$ref.split("/").at(-1)] : schema);

function table(rows) {
  if (!rows.length) return null;
  return make("table", {}, ...rows.map(([name, type, text]) => make("tr", {},
    make("th", { scope: "row" }, make("code", { textContent: name })), make("td", { textContent: type }), make("td", {}, ...words(text)))));
}

function properties(schema, all) {
  const required = new Set(schema?.required ?? []);
  return Object.entries(schema?.properties ?? {}).map(([name, value]) =>
    [name, typeOf(value, all) + (required.has(name) ? "" : ", optional"), value.description ?? ""]);
}

function operation(method, path, details, all) {
  const body = Object.values(details.requestBody?.content ?? {})[0]?.schema;
  const asked = [
    ...(details.parameters ?? []).map((one) => [one.name, typeOf(one.schema, all) + (one.required ? "" : ", optional"), one.description ?? ""]),
    ...properties(resolve(body, all), all),
  ];
  const answers = Object.entries(details.responses).map(([status, answer]) => {
    const [type, content] = Object.entries(answer.content ?? {})[0] ?? ["", {}];
    return [status, typeOf(content.schema, all) || type, answer.description];
  });
  return make("details", { id: details.operationId }, 
    make("summary", {}, make("code", { className: "method", textContent: method.toUpperCase() }), " ", make("code", { textContent: path }), ` ${details.summary ?? ""}`),
    ...paragraphs(details.description), asked.length ? make("h3", { textContent: "Asked" }) : null, table(asked), make("h3", { textContent: "Answered" }), table(answers));
}

function shape(name, schema, all) {
  const example = schema.examples?.[0];
  return make("details", {}, make("summary", {}, make("code", { textContent: name }), ` ${(schema.description ?? "").split("\n")[0]}`),
    table(properties(schema, all)), example ? make("pre", { textContent: JSON.stringify(example, null, 2), tabIndex: 0 }) : null);
}

async function begin() {
  const answer = await fetch("openapi.json");
  const schema = await answer.json();
  const all = schema.components.schemas;
  const operations = Object.entries(schema.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, details]) => ({ tag: details.tags?.[0], node: operation(method, path, details, all) })));
  document.getElementById("docs").append(...paragraphs(schema.info.description),
    ...schema.tags.flatMap(({ name, description }) => [make("h2", { textContent: name }), make("p", { textContent: description }),
      ...operations.filter(({ tag }) => tag === name).map(({ node }) => node)]),
    make("h2", { textContent: "Shapes" }), ...Object.entries(all).map(([name, one]) => shape(name, one, all)));
  document.getElementById("docs-note").remove();
  document.getElementById(location.hash.slice(1))?.setAttribute("open", "");
}

begin().catch((error) => (document.getElementById("docs-note").textContent = `The schema cannot be read: ${error.message}`));
