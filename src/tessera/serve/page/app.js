// The page: one state, kept in the address where it can be (gallery pictures) and in memory where it cannot (uploads).

import * as api from "./api.js";
import { BoxEditor } from "./box.js";
import { WhyDialog } from "./why.js";

const element = (id) => document.getElementById(id);
const uploads = new Map(); // number -> File: uploads live as long as the page, so that the back button finds them
const PAGE = 60;
const SETTLE_MS = 160;
const POLL_MS = 2500;

let state = { query: null, box: null, k: 20, where: [], expand: "", rerank: "" };
let hits = [];
let pending = null;
let shown = 0;
let blobUrl = null;
let answered = null; // the query whose results are on the page

const plural = (count, what) => `${count.toLocaleString()} ${what}${count === 1 ? "" : "s"}`;

const boxes = new BoxEditor(element("stage"), element("box"), (box, settled) => {
  state.box = box;
  showBoxTools();
  clearTimeout(boxes.timer);
  boxes.timer = setTimeout(() => run(), settled ? 0 : SETTLE_MS);
  if (settled) remember(true);
});

const why = new WhyDialog(
  () => ({ query: asked(), box: pixelBox(), source: element("query-image").src }),
  {
    previous: () => step(-1),
    next: () => step(1),
    search: (id) => start({ id }),
  },
);

// ---- state and address -------------------------------------------------------------------------------------------

function address() {
  const query = new URLSearchParams();
  if (state.query?.id !== undefined) query.set("image", state.query.id);
  if (state.query?.upload !== undefined) query.set("upload", state.query.upload);
  if (state.box) query.set("box", state.box.map((value) => value.toFixed(4)).join(","));
  if (state.k !== 20) query.set("k", state.k);
  for (const filter of state.where) query.append("where", filter);
  if (state.expand) query.set("expand", state.expand);
  if (state.rerank) query.set("rerank", state.rerank);
  const text = query.toString();
  return text ? `?${text}` : location.pathname;
}

function remember(replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", address());
}

function readAddress() {
  const query = new URLSearchParams(location.search);
  const box = query.get("box")?.split(",").map(Number);
  state = {
    query: null,
    box: box?.length === 4 && box.every(Number.isFinite) ? box : null,
    k: Number(query.get("k")) || 20,
    where: query.getAll("where"),
    expand: query.get("expand") ?? "",
    rerank: query.get("rerank") ?? "",
  };
  const upload = Number(query.get("upload"));
  if (query.has("image")) state.query = { id: Number(query.get("image")) };
  else if (uploads.has(upload)) state.query = { upload };
  else if (query.has("upload")) tell("An uploaded picture cannot be reached by a link. Choose it again.");
}

function asked() {
  return state.query.id !== undefined ? { id: state.query.id } : { file: uploads.get(state.query.upload) };
}

/** The box in pixels of the picture as the browser shows it, which is after its EXIF rotation. */
function pixelBox() {
  const picture = element("query-image");
  const { width, height } = state.query?.size ?? { width: picture.naturalWidth, height: picture.naturalHeight };
  return state.box && state.box.map((value, i) => Math.round(value * (i % 2 ? height : width) * 100) / 100);
}

// ---- starting a search -------------------------------------------------------------------------------------------

function start(query) {
  if (query.file) {
    if (!query.file.type.startsWith("image/")) return tell(`${query.file.name} is not a picture.`);
    const upload = uploads.size + 1;
    uploads.set(upload, query.file);
    query = { upload };
  }
  state = { ...state, query, box: null };
  remember();
  return show();
}

async function show() {
  tell("");
  for (const id of ["k", "expand", "rerank"]) element(id).value = state[id];
  showChips();
  element("query").hidden = !state.query;
  boxes.set(null);
  showBoxTools();
  if (!state.query) return browse(true);
  const picture = element("query-image");
  if (blobUrl) URL.revokeObjectURL(blobUrl);
  blobUrl = null;
  if (state.query.id !== undefined) picture.src = api.imageUrl(state.query.id);
  else picture.src = blobUrl = URL.createObjectURL(uploads.get(state.query.upload));
  element("stage").classList.remove("blank");
  try {
    await picture.decode();
  } catch {
    // The service may read formats that the browser does not show (TIFF): search all the same.
    element("stage").classList.add("blank");
  }
  if (state.box) boxes.set(state.box);
  showBoxTools();
  return run();
}

async function run() {
  if (!state.query) return;
  pending?.abort();
  const request = (pending = new AbortController());
  const query = state.query;
  document.body.classList.add("busy");
  element("welcome").hidden = true;
  try {
    const { k, where, expand, rerank } = state;
    const answer = await api.search(asked(), { k, where, expand, rerank, box: pixelBox() }, request.signal);
    hits = answer.results;
    answered = query;
    const { total } = answer.timing_ms;
    element("summary").textContent = hits.length
      ? `${plural(hits.length, "result")} in ${total < 10 ? total.toFixed(1) : Math.round(total)} ms${answer.note ? `. ${answer.note}` : ""}`
      : answer.note || "Nothing in the gallery passes these filters.";
    fill(true);
    tell("");
  } catch (error) {
    if (error.name === "AbortError") return;
    if (answered !== query) {
      // What is on the page belongs to another query; an error beside it would mislead.
      hits = [];
      fill(true);
    }
    fail(error);
  } finally {
    if (pending === request) document.body.classList.remove("busy");
  }
}

async function browse(fresh) {
  if (fresh) hits = [];
  answered = null;
  try {
    const answer = await api.browse(fresh ? 0 : hits.at(-1).id, PAGE, state.where);
    hits = hits.concat(answer.images);
    element("more").hidden = answer.next === null;
    welcome(answer.total);
    fill(fresh);
  } catch (error) {
    fail(error);
  }
}

// ---- drawing -----------------------------------------------------------------------------------------------------

function fill(fresh) {
  const grid = element("grid");
  if (fresh) {
    grid.replaceChildren();
    shown = 0;
    window.scrollTo({ top: 0 });
  }
  grid.append(...hits.slice(shown).map(tile));
  shown = hits.length;
  if (state.query) element("more").hidden = true;
}

function tile(hit, offset) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "tile";
  button.dataset.id = hit.id;
  button.setAttribute("role", "listitem");
  const ratio = Math.min(3, Math.max(0.4, hit.width / hit.height || 1));
  button.style.setProperty("--ratio", ratio.toFixed(3));
  const picture = document.createElement("img");
  picture.loading = "lazy";
  picture.decoding = "async";
  picture.src = api.thumbnailUrl(hit.id);
  picture.alt = "";
  button.append(picture);
  button.title = [hit.name, ...Object.entries(hit.metadata ?? {}).map(([key, value]) => `${key}: ${value}`)].join("\n");
  if (hit.score === undefined) {
    button.setAttribute("aria-label", `Search with ${hit.name}`);
    button.addEventListener("click", () => start({ id: hit.id }));
    return button;
  }
  button.setAttribute("aria-label", `Result ${hit.rank + 1}: ${hit.name}, similarity ${hit.score.toFixed(2)}. See why.`);
  const score = document.createElement("span");
  score.className = "score";
  score.textContent = hit.score.toFixed(2) + (hit.inliers ? ` · ${hit.inliers} matches` : "");
  button.append(score);
  button.addEventListener("click", () => why.show(hits[shown === hits.length ? hits.indexOf(hit) : offset], button));
  return button;
}

function step(by) {
  const next = hits[hits.indexOf(why.hit) + by];
  if (next) why.show(next, element("grid").children[hits.indexOf(next)]);
}

function showBoxTools() {
  element("clear-box").hidden = !state.box;
  element("add-box").hidden = Boolean(state.box);
  element("box-hint").textContent = state.box ? "Searching for what is in the box" : "Draw a box to search for one thing";
}

function showChips() {
  element("chips").replaceChildren(...state.where.map((filter) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `${filter} ✕`;
    button.setAttribute("aria-label", `Remove the filter ${filter}`);
    button.addEventListener("click", () => setFilters(state.where.filter((other) => other !== filter)));
    item.append(button);
    return item;
  }));
}

function setFilters(where) {
  state.where = where;
  remember();
  showChips();
  return state.query ? run() : browse(true);
}

function welcome(total) {
  const box = element("welcome");
  const summary = element("summary");
  box.hidden = total > 0;
  summary.textContent = "";
  if (total > 0 && state.where.length) {
    summary.textContent = `${plural(total, "picture")} with ${state.where.join(" and ")}`;
  } else if (total > 0) {
    summary.textContent = "Drop, paste or choose a picture, or click one below, to find the same place or object.";
  } else if (state.where.length) {
    box.innerHTML = "<h1>No picture passes these filters</h1><p>Remove one above.</p>";
  } else {
    box.innerHTML = "<h1>This gallery is empty</h1><p>Index a folder of pictures, and they appear here without a restart:</p><pre></pre>";
    box.querySelector("pre").textContent = `tessera index path/to/photos -g ${document.body.dataset.gallery || "GALLERY"}`;
    setTimeout(() => !state.query && !state.where.length && !hits.length && begin(), POLL_MS);
  }
}

/** A sentence above the results; `words in backticks` are commands. */
function tell(text, retry) {
  const notice = element("notice");
  notice.hidden = !text;
  const sentence = document.createElement("span");
  sentence.append(...(text.charAt(0).toUpperCase() + text.slice(1)).split("`").map((part, index) => {
    if (index % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  }));
  notice.replaceChildren(sentence);
  if (text && retry) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Try again";
    button.addEventListener("click", retry);
    notice.append(button);
  }
}

function fail(error) {
  if (error.status === 401) return askKey();
  element("summary").textContent = "";
  if (error.status === 0) waitForService();
  return tell(error.message, error.status === 0 || error.status === 429 || error.status >= 500 ? () => begin() : null);
}

/** The service is gone: look now and then, and go on by itself when it is back. */
async function waitForService() {
  clearTimeout(waitForService.timer);
  waitForService.timer = setTimeout(() => api.ready().then(begin, (error) => error.status === 0 ? waitForService() : begin()), POLL_MS);
}

function askKey(note = "") {
  element("ask-note").textContent = note;
  element("ask").showModal();
}

// ---- wiring ------------------------------------------------------------------------------------------------------

element("ask-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await api.openSession(element("ask-key").value);
    element("ask").close();
    begin();
  } catch (error) {
    element("ask-note").textContent = error.status === 401 ? "That key is not accepted." : error.message;
  }
});

element("choose").addEventListener("click", () => element("file").click());
element("file").addEventListener("change", (event) => {
  if (event.target.files[0]) start({ file: event.target.files[0] });
  event.target.value = "";
});
document.addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files ?? [])].find((item) => item.type.startsWith("image/"));
  if (file) start({ file });
});

let depth = 0;
document.addEventListener("dragenter", () => element("drop").classList.toggle("over", (depth += 1) > 0));
document.addEventListener("dragleave", () => element("drop").classList.toggle("over", (depth -= 1) > 0));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  depth = 0;
  element("drop").classList.remove("over");
  if (event.dataTransfer.files[0]) start({ file: event.dataTransfer.files[0] });
});

element("add-box").addEventListener("click", () => {
  boxes.set([0.25, 0.25, 0.75, 0.75]);
  state.box = boxes.box;
  showBoxTools();
  remember(true);
  element("box").focus();
  run();
});
element("clear-box").addEventListener("click", () => {
  boxes.set(null);
  state.box = null;
  showBoxTools();
  remember(true);
  run();
});
for (const id of ["k", "expand", "rerank"]) {
  element(id).addEventListener("change", (event) => {
    state[id] = id === "k" ? Number(event.target.value) : event.target.value;
    remember();
    run();
  });
}
element("home").addEventListener("click", (event) => {
  event.preventDefault();
  state = { ...state, query: null, box: null };
  remember();
  show();
});
element("more").addEventListener("click", () => browse(false));
element("grid").addEventListener("keydown", (event) => {
  const next = neighbour(event.target, event.key);
  if (next) {
    event.preventDefault();
    next.focus();
  }
});

/** The tile that an arrow key leads to: the next in the row, or the nearest one of the next row. */
function neighbour(tile, key) {
  if (key === "ArrowRight") return tile.nextElementSibling;
  if (key === "ArrowLeft") return tile.previousElementSibling;
  if (key !== "ArrowDown" && key !== "ArrowUp") return null;
  const { top, left, width } = tile.getBoundingClientRect();
  const step = key === "ArrowDown" ? "nextElementSibling" : "previousElementSibling";
  let best = null;
  let row = null;
  for (let other = tile[step]; other; other = other[step]) {
    const frame = other.getBoundingClientRect();
    if (Math.abs(frame.top - top) < 2) continue;
    row ??= frame.top;
    if (Math.abs(frame.top - row) >= 2) break;
    const distance = Math.abs(frame.left + frame.width / 2 - left - width / 2);
    if (!best || distance < best.distance) best = { other, distance };
  }
  return best?.other ?? null;
}
element("filters").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = element("filter-value").value.trim();
  if (!value) return;
  element("filter-value").value = "";
  setFilters([...state.where, `${element("filter-key").value}=${value}`]);
});
window.addEventListener("popstate", () => {
  readAddress();
  show();
});
window.addEventListener("online", () => begin());

async function loadFilters() {
  const { facets } = await api.facets();
  const keys = Object.keys(facets);
  element("filters").hidden = keys.length === 0;
  element("filter-key").replaceChildren(...keys.map((key) => new Option(key, key)));
  const fillValues = () =>
    element("filter-values").replaceChildren(...(facets[element("filter-key").value] ?? []).map((value) => new Option(value)));
  element("filter-key").onchange = fillValues; // this runs again whenever the service was away
  fillValues();
}

async function begin() {
  clearTimeout(waitForService.timer);
  try {
    const progress = await waitUntilReady();
    if (!progress) return;
    const stats = await api.stats();
    document.body.dataset.gallery = stats.gallery;
    element("count").textContent = plural(stats.images, "picture");
    await loadFilters();
    readAddress();
    await show();
  } catch (error) {
    fail(error);
  }
}

/** A large gallery takes its time to load: show how far it is, and go on by itself. */
async function waitUntilReady() {
  for (;;) {
    try {
      await api.ready();
      return true;
    } catch (error) {
      if (error.status !== 503) throw error;
      const box = element("welcome");
      box.hidden = false;
      box.innerHTML = "<h1>The gallery is loading</h1><progress></progress><p></p>";
      box.querySelector("p").textContent = error.message;
      await new Promise((resume) => setTimeout(resume, 500));
    }
  }
}

begin();
