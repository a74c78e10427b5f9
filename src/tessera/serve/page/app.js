// The page: one state, kept in the address; pictures that were uploaded are kept in the browser.

import * as api from "./api.js";
import { wireAdding } from "./adding.js";
import { BoxEditor } from "./box.js";
import { Filters } from "./filters.js";
import { Grid } from "./grid.js";
import { LargeDialog } from "./large.js";
import { plural, sentence, tell } from "./notice.js";
import { OrganiseView } from "./organise.js";
import { Selection } from "./selection.js";
import { Timeline } from "./timeline.js";
import * as uploads from "./uploads.js";
import { WhyDialog } from "./why.js";

const element = (id) => document.getElementById(id);
const PAGE = 60;
const SETTLE_MS = 160;
const POLL_MS = 2500;
const byTouch = matchMedia("(pointer: coarse)").matches;
const DRAW_HINT = byTouch ? "Tap one thing, or draw a box" : "Draw a box around one thing";
const DOUBT = /Nothing certain: .*? These are the nearest\.\s*/;
const TYPING_MS = 350;
const WELCOME = byTouch
  ? "Choose a picture, or tap one below, to find the same place or object."
  : "Drop, paste or choose a picture to find the same place or object.";

let usualSort = "added"; // by date where most pictures have one
let state = { view: "", sort: usualSort, query: null, box: null, k: 20, where: [], expand: "", rerank: "", why: null };
let hits = [];
let size = null; // of the query picture, in the pixels that the service counts boxes in
let pending = null; // the search under way
let turning = null; // the page of the gallery under way
let showing = null; // the last call of show(); an earlier one that wakes up later must not go on
let blobUrl = null;
let known = null; // the months of the whole gallery, just asked for
let leaving = false; // the large picture was closed, and its step is taken back
let answered = null; // the query whose results are on the page
let total = 0; // pictures of this view, of which the page may hold the first ones only

const placeOf = ({ id }) => hits.findIndex((hit) => hit.id === id);
const countDated = (months) => months.reduce((sum, { images }) => sum + images, 0);

const grid = new Grid(element("grid"), (hit, tile) => {
  if (hit.score !== undefined) return openWhy(hit, tile);
  if (timeline.sections.length) hits = timeline.shown();
  large.show(hit, tile);
});
const timeline = new Timeline({ fill: (room, images) => grid.append(images, undefined, room), fail });
const selection = new Selection(element("results"));
const organise = new OrganiseView({
  open: (image, all, tile) => {
    hits = all;
    large.show(image, tile);
  },
  askKey: () => askKey("Sorting asks for the writer’s key", false),
});
const large = new LargeDialog({
  neighbour: (hit, by) => (placeOf(hit) < 0 ? undefined : hits[placeOf(hit) + by]),
  place: (hit) => (placeOf(hit) >= 0 && hits.length > 1 && count() ? `${(placeOf(hit) + 1).toLocaleString()} of ${count().toLocaleString()}` : ""),
  extend,
  search: (id) => start({ id }),
  // A step to go back from, as a phone's readers do.
  opened: () => history.pushState({ ...history.state, large: true }, ""),
  closed: () => {
    if (!history.state?.large) return;
    leaving = true;
    history.back();
  },
});
const filters = new Filters((where) => {
  state.where = where;
  remember();
  filters.show(where);
  showName();
  return state.query ? run() : browse(true);
});
const boxes = new BoxEditor(element("stage"), element("box"), (box, settled) => {
  state.box = box;
  showBoxTools();
  clearTimeout(boxes.timer);
  boxes.timer = setTimeout(() => run(), settled ? 0 : SETTLE_MS);
  if (settled) rememberBox();
});
const why = new WhyDialog(
  () => ({ query: asked(), box: pixelBox(), source: element("query-image").src }),
  { step, search: (id) => start({ id }), large: (hit, opener) => large.show(hit, opener), closed: closeWhy },
);

// ---- state and address -------------------------------------------------------------------------------------------

function address({ why: open = state.why } = {}) {
  const query = new URLSearchParams();
  if (state.view) query.set("view", state.view);
  if (state.sort !== usualSort) query.set("sort", state.sort);
  if (state.query?.id !== undefined) query.set("image", state.query.id);
  if (state.query?.upload !== undefined) query.set("upload", state.query.upload);
  if (state.box) query.set("box", state.box.map((value) => value.toFixed(4)).join(","));
  if (state.k !== 20) query.set("k", state.k);
  for (const filter of state.where) query.append("where", filter);
  if (state.expand) query.set("expand", state.expand);
  if (state.rerank) query.set("rerank", state.rerank);
  if (open !== null) query.set("why", open);
  const text = query.toString();
  return text ? `?${text}` : location.pathname;
}

function remember(replace = false, mark = null) {
  history[replace ? "replaceState" : "pushState"](mark, "", address());
}

/** A box that comes or goes is a step to go back to; one that moves is the same step. */
function rememberBox() {
  remember(new URLSearchParams(location.search).has("box") === Boolean(state.box));
}

function readAddress() {
  const query = new URLSearchParams(location.search);
  const chosen = (id) => [...element(id).options].map(({ value }) => value).find((value) => value === query.get(id)) ?? "";
  state = {
    view: ["groups", "duplicates"].includes(query.get("view")) ? query.get("view") : "",
    sort: chosen("sort") || usualSort,
    query: null,
    box: boxFrom(query.get("box")),
    k: Number(query.get("k")) || 20,
    where: query.getAll("where"),
    expand: chosen("expand"),
    rerank: chosen("rerank"),
    why: query.has("why") ? Number(query.get("why")) : null,
  };
  const upload = Number(query.get("upload"));
  if (query.has("image")) state.query = { id: Number(query.get("image")) };
  else if (uploads.has(upload)) state.query = { upload };
  if (query.has("upload") && !state.query) return "This browser does not have that uploaded picture. Choose it again.";
  if (query.has("box") && !state.box) return "The box of this link is not on the picture, so the whole picture is searched for.";
  return "";
}

/** A box of a link, cut to the picture; none where nothing of it is left. */
function boxFrom(text) {
  const box = (text ?? "").split(",").map((value) => Math.min(1, Math.max(0, Number.parseFloat(value))));
  return box.length === 4 && box[2] - box[0] > 0 && box[3] - box[1] > 0 ? box : null;
}

function asked() {
  return state.query.id !== undefined ? { id: state.query.id } : { file: uploads.get(state.query.upload) };
}

/** The box in pixels of the whole upright picture; the one on the page may be a smaller copy. */
function pixelBox() {
  if (!state.box || !size) return null;
  return state.box.map((value, i) => Math.round(value * (i % 2 ? size.height : size.width) * 100) / 100);
}

// ---- starting a search -------------------------------------------------------------------------------------------

function start(query) {
  if (query.file) {
    const { type, name } = query.file;
    if (type && !type.startsWith("image/")) return tell(`${name} is not a picture. Choose a JPEG, PNG, WebP, TIFF or GIF.`);
    query = { upload: uploads.add(query.file) };
  }
  state = { ...state, view: "", query, box: null, why: null };
  remember(Boolean(history.state?.large)); // in the place of the large picture's step
  return show();
}

async function show(note = "") {
  const mine = (showing = Symbol());
  tell(note);
  selection.set(false);
  document.body.classList.toggle("organising", Boolean(state.view));
  timeline.hide();
  if (![...element("k").options].some((option) => Number(option.value) === state.k)) element("k").append(new Option(state.k));
  for (const id of ["k", "expand", "rerank"]) element(id).value = state[id];
  filters.show(state.where);
  if (state.expand || state.rerank) element("refine").open = true;
  element("sort").value = state.sort;
  if (document.activeElement !== element("name")) showName();
  for (const tab of document.querySelectorAll("[data-view]")) tab.setAttribute("aria-pressed", String(tab.dataset.view === state.view));
  element("browse-tools").hidden = Boolean(state.query || state.view);
  if (state.view) return showSets();
  organise.hide();
  element("query").hidden = !state.query;
  boxes.set(null);
  size = null;
  showBoxTools();
  if (state.why === null) why.close();
  if (!state.query) return browse(true);
  pending?.abort();
  document.body.classList.add("busy");
  try {
    size = await showQuery();
  } catch (error) {
    if (showing === mine) lose(error);
    return;
  }
  if (showing !== mine) return;
  if (size) boxes.set(state.box);
  showBoxTools();
  await run();
  if (note && showing === mine && element("notice").hidden) tell(note);
}

/** Groups or copies instead of pictures. */
async function showSets() {
  pending?.abort();
  turning = null;
  hits = [];
  grid.replace(hits);
  document.body.classList.remove("busy");
  for (const id of ["query", "more", "welcome"]) element(id).hidden = true;
  try {
    await organise.show(state.view);
  } catch (error) {
    fail(error);
  }
}

/** Another order, name or month of the gallery. */
function arrange(changes) {
  state = { ...state, ...changes };
  remember();
  return show();
}

function showName() {
  element("name").value = state.where.find((filter) => filter.startsWith("name~"))?.slice(5) ?? "";
}

const without = (start) => state.where.filter((filter) => !filter.startsWith(start));

async function offerMonths(months) {
  if (state.where.some((filter) => filter.startsWith("date="))) ({ months } = await api.months(without("date=")));
  element("month-label").hidden = months.length < 2;
  const chosen = state.where.find((filter) => filter.startsWith("date="))?.slice(5) ?? "";
  element("month").replaceChildren(new Option("all", ""), ...months.map(({ month, images }) => new Option(`${month} (${images})`, month, false, month === chosen)));
}

/** Put the query's picture on the page; gives its size, or null where the browser cannot show it and nobody knows. */
async function showQuery() {
  const picture = element("query-image");
  const { id, upload } = state.query;
  if (blobUrl) URL.revokeObjectURL(blobUrl);
  blobUrl = id === undefined ? URL.createObjectURL(uploads.get(upload)) : null;
  picture.src = blobUrl ?? api.imageUrl(id);
  const source = picture.src;
  element("stage").classList.remove("blank");
  const record = id === undefined ? { name: uploads.get(upload).name } : await api.image(id);
  if (picture.src !== source) return null; // another query has taken its place
  element("query-name").textContent = record.name;
  try {
    await picture.decode();
    return record.width ? record : { width: picture.naturalWidth, height: picture.naturalHeight };
  } catch {
    // The service may read formats that the browser does not show (TIFF): search all the same.
    if (picture.src === source) element("stage").classList.add("blank");
    return record.width ? record : null;
  }
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
    const { total: ms } = answer.timing_ms;
    const time = ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
    const found = `${plural(hits.length, "result")} in ${time}`;
    const note = hits.length ? answer.note.replace(DOUBT, "") : answer.note; // the heading says so
    element("summary").replaceChildren(...sentence(hits.length
      ? `${found}${note ? `. ${note}` : ""}`
      : note || "Nothing in the gallery passes these filters. Remove one above."));
    grid.replace(hits, query.id, answer.certain !== false);
    element("more").hidden = true;
    tell("");
    followWhy();
  } catch (error) {
    if (error.name !== "AbortError") lose(error);
  } finally {
    if (pending === request) document.body.classList.remove("busy");
  }
}

/** A search failed. What is on the page may belong to another query, and an error beside it would mislead. */
function lose(error) {
  document.body.classList.remove("busy");
  if (error.status === 404 && state.query?.id !== undefined && !size) { // a link to what is no longer there
    state = { ...state, query: null, box: null, why: null };
    remember(true);
    return show(error.message);
  }
  if (answered !== state.query) {
    hits = [];
    grid.replace(hits);
    element("more").hidden = true;
  }
  fail(error);
}

/** How many pictures this view has; 0 where the place of one among them is not known. */
function count() {
  if (timeline.sections.length) return timeline.isWhole() ? hits.length : 0;
  return element("more").hidden ? hits.length : total;
}

/** Whoever goes from picture to picture does not come to an end that is none. */
async function extend(hit) {
  if (timeline.sections.length) {
    await timeline.extend(hit.id);
    hits = timeline.shown();
  } else if (!element("more").hidden && placeOf(hit) > hits.length - PAGE / 2) {
    await browse(false);
  }
}

async function browse(fresh) {
  if (turning && !fresh) return;
  const mine = (turning = Symbol());
  answered = null;
  if (fresh && ["newest", "oldest"].includes(state.sort)) return browseMonths(mine);
  try {
    const [answer, { months }] = await Promise.all([
      api.browse(fresh ? 0 : hits.at(-1).id, PAGE, state.where, state.sort),
      fresh ? api.months(state.where) : {},
    ]);
    if (turning !== mine || state.query || state.view) return;
    if (fresh) offerMonths(months).catch(fail);
    hits = fresh ? answer.images : hits.concat(answer.images);
    if (fresh) grid.replace(hits);
    else grid.append(answer.images);
    element("more").hidden = answer.next === null;
    total = answer.total;
    welcome(total);
  } catch (error) {
    if (turning === mine) fail(error);
  } finally {
    if (turning === mine) turning = null;
  }
}

/** The gallery by date: as tall as it is from the start, so that any month is one step away. */
async function browseMonths(mine) {
  try {
    const { where, sort } = state;
    const { months, undated } = (!where.length && known) || (await api.months(where));
    known = null; // they were of the page's first moment
    if (turning !== mine || state.query || state.view) return;
    offerMonths(months).catch(fail);
    hits = [];
    grid.replace(hits);
    element("more").hidden = true;
    const dated = sort === "oldest" ? months.toReversed() : months;
    timeline.show(undated ? [...dated, { month: "", images: undated }] : dated, (month, after, limit) => api.browse(after, limit, where, sort, month));
    welcome(undated + countDated(months));
  } catch (error) {
    if (turning === mine) fail(error);
  } finally {
    if (turning === mine) turning = null;
  }
}

// ---- why ---------------------------------------------------------------------------------------------------------

function openWhy(hit, tile) {
  state.why = hit.id;
  remember(false, { opened: true });
  why.show(hit, hits.length, tile);
}

function step(by) {
  const next = hits[hits.indexOf(why.hit) + by];
  if (!next) return;
  state.why = next.id;
  remember(true, history.state);
  why.show(next, hits.length, grid.tile(next.id));
}

/** The address or new results ask for a dialog: open it, or close it. */
function followWhy() {
  const hit = hits.find(({ id }) => id === state.why);
  if (hit) return why.show(hit, hits.length, grid.tile(hit.id));
  if (state.why !== null) return explainStranger(state.why);
  return why.close();
}

/** A link asks for the reasons of a picture that is not among the results. */
async function explainStranger(id) {
  try {
    const record = await api.image(id);
    if (state.why === id) why.show(record, hits.length, null);
  } catch (error) {
    if (state.why !== id) return;
    state.why = null;
    remember(true);
    why.close();
    tell(`The reasons of this link cannot be shown. ${error.message}`);
  }
}

/** The reader closed it: back to the results, as the back button would. */
function closeWhy() {
  if (state.why === null) return;
  if (history.state?.opened) return history.back();
  state.why = null;
  remember(true);
}

// ---- words -------------------------------------------------------------------------------------------------------

function showBoxTools() {
  const known = Boolean(size);
  element("clear-box").hidden = !state.box || !known;
  element("add-box").hidden = Boolean(state.box) || !known;
  element("box-hint").textContent = !known ? "" : state.box ? "Searching for what is in the box" : DRAW_HINT;
}

function welcome(total) {
  const box = element("welcome");
  const summary = element("summary");
  box.hidden = total > 0;
  summary.textContent = "";
  if (total > 0 && state.where.length) {
    summary.textContent = plural(total, "picture");
  } else if (total > 0) {
    summary.textContent = WELCOME;
  } else if (state.where.length) {
    box.innerHTML = "<h2>No picture passes these filters</h2><p>Remove one above.</p>";
  } else {
    box.innerHTML = "<h2>This gallery is empty</h2><p>Index a folder of pictures, and they appear here without a restart:</p><pre></pre>";
    box.querySelector("pre").textContent = `tessera index path/to/photos -g ${document.body.dataset.gallery || "GALLERY"}`;
    setTimeout(() => !state.query && !state.where.length && !hits.length && begin(), POLL_MS);
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

/** Resolves with whether one was given; without the reader's key nothing can be seen, so that one must be. */
function askKey(title = "This gallery asks for a key", needed = true) {
  element("ask").dataset.needed = needed;
  element("ask").returnValue = "";
  element("ask-title").textContent = title;
  element("ask-note").textContent = "";
  element("ask-key").value = "";
  element("ask-cancel").hidden = needed;
  if (!element("ask").open) element("ask").showModal();
  return new Promise((given) => element("ask").addEventListener("close", () => given(element("ask").returnValue === "given"), { once: true }));
}

/** A code that a terminal showed holds the key behind the #, where no server and no log sees it. */
async function takeKey() {
  if (!location.hash.startsWith("#key=")) return;
  const key = decodeURIComponent(location.hash.slice(5));
  history.replaceState(null, "", location.pathname + location.search);
  await api.openSession(key);
}

function share() {
  const link = location.href;
  const isLocal = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  element("share-code").src = api.codeUrl(link);
  element("share-code").hidden = isLocal;
  element("share-link").value = link;
  element("share-note").textContent = isLocal
    ? "The service answers to this machine only, so a phone cannot open it."
    : state.query?.upload !== undefined ? "Your uploaded picture stays in this browser: others see the gallery." : "Scan it with a phone in the same network.";
  element("share-dialog").showModal();
}

// ---- wiring ------------------------------------------------------------------------------------------------------

element("ask").addEventListener("cancel", (event) => element("ask").dataset.needed === "true" && event.preventDefault());
element("ask-cancel").addEventListener("click", () => element("ask").close());
element("ask-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await api.openSession(element("ask-key").value);
    element("ask").close("given");
    if (element("ask").dataset.needed === "true") begin();
  } catch (error) {
    element("ask-note").textContent = error.message;
  }
});

wireAdding({ askKey: () => askKey("Adding asks for the writer’s key", false), done: () => begin() });
element("share").addEventListener("click", share);
element("share-close").addEventListener("click", () => element("share-dialog").close());
element("share-copy").addEventListener("click", async () => {
  element("share-link").select();
  await navigator.clipboard?.writeText(element("share-link").value).catch(() => document.execCommand("copy"));
  element("share-copy").textContent = "Copied";
});
element("camera").hidden = !byTouch;
element("camera").addEventListener("click", () => element("camera-file").click());
element("camera-file").addEventListener("change", (event) => event.target.files[0] && start({ file: event.target.files[0] }));
element("choose").addEventListener("click", () => element("file").click());
element("file").addEventListener("change", (event) => {
  if (event.target.files[0]) start({ file: event.target.files[0] });
  event.target.value = "";
});
document.addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files ?? [])].find((item) => item.type.startsWith("image/"));
  if (file) start({ file });
});

let depth = 0; // of the elements that a dragged file is over
const dragging = (by) => (event) => {
  if (event.dataTransfer?.types.includes("Files")) element("drop").classList.toggle("over", (depth += by) > 0);
};
document.addEventListener("dragenter", dragging(1));
document.addEventListener("dragleave", dragging(-1));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  depth = 0;
  element("drop").classList.remove("over");
  if (event.dataTransfer.files[0]) start({ file: event.dataTransfer.files[0] });
});

element("add-box").addEventListener("click", () => {
  boxes.propose([0.5, 0.5]);
  element("box").focus();
});
element("clear-box").addEventListener("click", () => boxes.clear());
for (const id of ["k", "expand", "rerank"]) {
  element(id).addEventListener("change", (event) => {
    state[id] = id === "k" ? Number(event.target.value) : event.target.value;
    remember();
    run();
  });
}
element("home").addEventListener("click", (event) => {
  event.preventDefault();
  arrange({ view: "", query: null, box: null, why: null });
});
for (const tab of document.querySelectorAll("[data-view]")) {
  tab.addEventListener("click", () => arrange({ view: tab.dataset.view, query: null, box: null, why: null }));
}
element("sort").addEventListener("change", (event) => arrange({ sort: event.target.value }));
element("month").addEventListener("change", (event) =>
  arrange({ where: [...without("date="), ...(event.target.value ? [`date=${event.target.value}`] : [])] }));
element("filter-toggle").addEventListener("click", () => filters.fold(element("filters").classList.contains("open")));
element("keys-open").addEventListener("click", () => element("keys").showModal());
element("keys-close").addEventListener("click", () => element("keys").close());
for (const id of ["keys", "share-dialog"]) element(id).addEventListener("click", (event) => event.target === element(id) && element(id).close());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea") || document.querySelector("dialog[open]")) return;
  const work = { "/": () => element("name").focus(), "?": () => element("keys").showModal(), u: () => element("file").click() }[event.key];
  if (!work) return;
  event.preventDefault();
  work();
});
/** Names are searched while they are typed; the whole word is one step to go back from. */
function searchName() {
  clearTimeout(searchName.timer);
  const name = element("name").value.trim();
  const where = [...without("name~"), ...(name ? [`name~${name}`] : [])];
  if (where.join("\n") === state.where.join("\n")) return;
  const goesOn = state.where.length === where.length; // a letter more or less
  state = { ...state, where };
  remember(goesOn);
  show();
}
element("name").addEventListener("input", () => {
  clearTimeout(searchName.timer);
  searchName.timer = setTimeout(searchName, TYPING_MS);
});
element("browse-tools").addEventListener("submit", (event) => {
  event.preventDefault();
  searchName();
});
element("more").addEventListener("click", () => browse(false));
new IntersectionObserver(([entry]) => entry.isIntersecting && browse(false), { rootMargin: "800px" }).observe(element("more"));
window.addEventListener("popstate", () => {
  if (leaving) return void (leaving = false);
  if (large.dialog.open) return large.dialog.close();
  const before = address({ why: null });
  const note = readAddress();
  showName();
  if (address({ why: null }) === before && !note) followWhy();
  else show(note);
});
window.addEventListener("online", () => begin());

async function begin() {
  clearTimeout(waitForService.timer);
  if (history.state?.large && !large.dialog.open) history.replaceState({ ...history.state, large: false }, ""); // the page was loaded again
  try {
    await Promise.all([uploads.load(), takeKey()]);
    const [stats, months] = await onceReady(() => Promise.all([api.stats(), api.months([]), offerRefiners()]));
    known = months;
    usualSort = countDated(months.months) > months.undated ? "newest" : "added";
    document.body.dataset.gallery = stats.gallery;
    element("add").hidden = !stats.writable;
    element("large-path").hidden = !stats.own_machine;
    element("large-reveal").hidden = !stats.reveals;
    organise.mayChange = stats.own_machine || stats.writable;
    element("count").textContent = plural(stats.images, "picture");
    filters.load().catch(fail); // pictures do not wait for it
    await show(readAddress());
  } catch (error) {
    fail(error);
  }
}

/** What may follow a search, of what this service can do. */
async function offerRefiners() {
  const { refiners } = await api.refiners();
  for (const id of ["expand", "rerank"]) {
    const offered = refiners.filter(({ stage, available }) => stage === id && available);
    const options = offered.map(({ label, name, summary }) => Object.assign(new Option(label, name), { title: summary }));
    element(id).replaceChildren(new Option("none", ""), ...options);
  }
}

/** What `ask` gives; where the gallery is still loading, when it has loaded. */
async function onceReady(ask) {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (error.status !== 503) throw error;
      await waitUntilReady();
      await new Promise((resume) => setTimeout(resume, 200));
    }
  }
}

/** A large gallery takes its time to load: say what is done and for how long, and go on by itself. */
async function waitUntilReady() {
  const box = element("welcome");
  const since = Date.now();
  for (;;) {
    try {
      return await api.ready();
    } catch (error) {
      if (error.status !== 503) throw error;
      if (!box.querySelector("progress")) {
        box.innerHTML = '<h2>The gallery is loading</h2><progress aria-label="Loading"></progress><p role="status"></p><p class="elapsed"></p>';
      }
      box.hidden = false;
      const [stage, elapsed] = box.querySelectorAll("p");
      if (stage.textContent !== error.message) stage.textContent = error.message; // or it would be read aloud each time
      elapsed.textContent = `${Math.round((Date.now() - since) / 1000)} s`;
      await new Promise((resume) => setTimeout(resume, 500));
    }
  }
}

begin();
