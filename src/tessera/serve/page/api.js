// The service's answers as promises. A problem+json answer becomes an Error with its title and detail.

export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
    this.title = title;
  }
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "Offline", "The service does not answer. Is `tessera serve` still running?");
  }
  const body = response.headers.get("content-type")?.includes("json") ? await response.json() : null;
  if (!response.ok) throw new Problem(response.status, body?.title ?? response.statusText, body?.detail);
  return body;
}

function optionsQuery({ k, box, where = [], expand, rerank }) {
  const query = new URLSearchParams();
  if (k) query.set("k", k);
  if (box) query.set("box", box.join(","));
  for (const filter of where) query.append("where", filter);
  if (expand) query.set("expand", expand);
  if (rerank) query.set("rerank", rerank);
  return query;
}

function upload(file, fields) {
  const form = new FormData();
  form.set("file", file);
  for (const [name, value] of fields) form.append(name, value);
  return form;
}

export const ready = () => ask("ready");
export const stats = () => ask("api/stats");
export const refiners = () => ask("api/refiners");
export const facets = () => ask("api/facets");
export const browse = (after, limit, where, sort, month = null) => {
  const query = optionsQuery({ where });
  if (month !== null) query.set("month", month || "undated");
  query.set("sort", sort);
  query.set("after", after);
  query.set("limit", limit);
  return ask(`api/images?${query}`);
};
export const months = (where) => ask(`api/months?${optionsQuery({ where })}`);
export const sets = (kind, start, limit) => ask(`api/${kind}?start=${start}&limit=${limit}`);
export const organising = () => ask("api/organising");
export const find = (kind) => ask(`api/${kind}/find`, { method: "POST" });
export const leaveGroup = (id) => ask(`api/images/${id}/leave-group`, { method: "POST" });
export const sameThing = (id) => ask(`api/images/${id}/group`);
export const takeApart = (ids) =>
  ask("api/duplicates/apart", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ids }) });
export const path = (id) => ask(`api/images/${id}/path`);
export const reveal = (id) => ask(`api/images/${id}/reveal`, { method: "POST" });
export const originalUrl = (id) => `api/images/${id}/original`;
export const image = (id) => ask(`api/images/${id}`);
export const openSession = (key) =>
  ask("api/session", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ key }) });

export function search(query, options, signal) {
  const fields = optionsQuery(options);
  if (query.id !== undefined) return ask(`api/images/${query.id}/search?${fields}`, { signal });
  return ask("api/search", { method: "POST", body: upload(query.file, fields), signal });
}

export function explain(query, box, otherId, signal) {
  const fields = optionsQuery({ box });
  if (query.id !== undefined) return ask(`api/images/${query.id}/explain/${otherId}?${fields}`, { signal });
  return ask(`api/explain/${otherId}`, { method: "POST", body: upload(query.file, fields), signal });
}

export const addImage = (file) => ask("api/images", { method: "POST", body: upload(file, []) });
export const codeUrl = (text) => `api/code?text=${encodeURIComponent(text)}`;
export const thumbnailUrl = (id) => `api/images/${id}/thumbnail`;
export const imageUrl = (id) => `api/images/${id}/file`;
