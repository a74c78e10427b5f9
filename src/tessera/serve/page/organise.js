// Groups and copies as views: what was found, finding more, and saying what does not belong together.

import * as api from "./api.js";
import { tileRatio } from "./grid.js";
import { plural, tell } from "./notice.js";
import { monthName } from "./timeline.js";

const element = (id) => document.getElementById(id);
const POLL_MS = 400;
const PAGE = 50;
const bytesText = (bytes) => (bytes < 1e6 ? `${Math.max(1, Math.round(bytes / 1e3))} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
const WORDS = {
  groups: { button: "Find groups", none: "No groups yet", found: "No groups found", hint: "Photos of the same place or thing, found by local features that agree." },
  duplicates: { button: "Find copies", none: "No copies yet", found: "No copies found", hint: "Exact and near copies, laid over each other and compared. Nothing is moved or removed." },
};

const make = (name, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
};

export class OrganiseView {
  /** open(image, all, tile): a picture was clicked; askKey(): resolves with whether a key was given. */
  constructor({ open, askKey }) {
    this.open = open;
    this.askKey = askKey;
    this.kind = null;
    this.gallery = ""; // its path, for whoever sits at its machine
    this.sought = new Set(); // of which kinds the page has seen a search end
    this.mayChange = true; // whether this service lets anyone find more and take apart
    this.shown = PAGE;
  }

  /** The view, with its button at once; what was found follows. */
  async show(kind) {
    this.kind = kind;
    this.shown = PAGE;
    const { button, hint } = WORDS[kind];
    const find = make("button", { type: "button", id: "find", className: "primary", textContent: button, hidden: !this.mayChange });
    find.addEventListener("click", () => this.#act(() => api.find(kind)).then((begun) => begun && this.#follow(kind)));
    this.list = make("div", { id: "sets" });
    this.more = make("button", { type: "button", id: "more-sets", textContent: "Show more", hidden: true });
    this.more.addEventListener("click", () => {
      this.shown += PAGE;
      this.#fill(kind);
    });
    this.state = make("p", { id: "finding", className: "hint", role: "status" });
    this.title = make("h2");
    this.head = make("div", { className: "organise-head" }, this.title, make("p", { className: "hint", textContent: hint }), find, this.state);
    element("organise").replaceChildren(this.head, this.list, this.more);
    element("organise").hidden = false;
    element("summary").textContent = "";
    await this.#fill(kind);
    const { finding } = await api.organising();
    if (finding === kind) await this.#follow(kind);
  }

  hide() {
    this.kind = null;
    element("organise").hidden = true;
    element("organise").replaceChildren();
  }

  async #follow(kind) {
    element("find").disabled = true;
    for (;;) {
      const { finding, done, total, failure } = await api.organising();
      if (this.kind !== kind) return;
      if (finding !== kind) {
        element("find").disabled = false;
        this.state.textContent = failure;
        if (!failure) this.sought.add(kind);
        return this.#fill(kind);
      }
      this.state.textContent = total ? `Comparing: ${done.toLocaleString()} of ${total.toLocaleString()} pairs` : "Looking for candidates…";
      await new Promise((resume) => setTimeout(resume, POLL_MS));
    }
  }

  async #fill(kind) {
    try {
      const starts = Array.from({ length: this.shown / PAGE }, (_, page) => page * PAGE);
      const answers = await Promise.all(starts.map((start) => api.sets(kind, start, PAGE)));
      if (this.kind !== kind) return;
      const answer = answers[0];
      const groups = answers.flatMap((page) => page.groups);
      this.list.replaceChildren(...groups.map((group) => this.#set(kind, group)));
      this.head.classList.toggle("none", !groups.length);
      this.title.textContent = groups.length ? "" : WORDS[kind][this.sought.has(kind) ? "found" : "none"];
      this.more.hidden = answer.total <= this.shown;
      element("summary").textContent = !groups.length ? "" : kind === "groups"
        ? `${plural(answer.images, "picture")} in ${plural(answer.total, "group")}`
        : `${plural(answer.copies, "copy", "copies")} of ${plural(answer.total, "picture")}, ${bytesText(answer.bytes)}`;
    } catch (error) {
      tell(error.message);
    }
  }

  #set(kind, group) {
    const images = kind === "groups" ? group.images : [group.keep, ...group.copies];
    const figures = images.map((image) => {
      const tile = make("button", { type: "button", className: "pick", title: image.name, ariaLabel: `Open ${image.name}` }, make("img", { src: api.thumbnailUrl(image.id), alt: "", loading: "lazy" }));
      tile.addEventListener("click", () => this.open(image, images, tile));
      const figure = make("figure", { className: image === group.keep ? "keep" : "" }, tile);
      figure.style.setProperty("--ratio", tileRatio(image).toFixed(3));
      if (kind === "duplicates") figure.append(make("span", { className: "badge", textContent: image === group.keep ? "keep" : `${image.kind} copy` }));
      figure.append(make("figcaption", { textContent: caption(kind, image, group) }));
      if (kind === "groups" && this.mayChange && images.length > 1) figure.append(this.#button("Not this", `${image.name} does not belong to this group`, () => api.leaveGroup(image.id), "leave"));
      return figure;
    });
    const title = kind === "groups" ? plural(images.length, "picture") : group.keep.name;
    const head = make("header", {}, make("h2", { textContent: title }, make("span", { textContent: kind === "groups" ? period(images) : `keep it: ${group.reason}` })));
    const tools = make("div", { className: "set-tools" }, archiveForm(images.map(({ id }) => id), title));
    if (kind === "duplicates" && this.mayChange) tools.prepend(this.#button("Not copies", `${group.keep.name} and these are no copies`, () => api.takeApart(images.map(({ id }) => id))));
    head.append(tools);
    const set = make("section", { className: "set", ariaLabel: title }, head, make("div", { className: "row" }, ...figures));
    set.style.setProperty("--wide", images.reduce((sum, image) => sum + Math.max(0.81, tileRatio(image)) + 0.06, 0).toFixed(2)); // a narrow one has a caption, too
    return set;
  }

  #button(text, label, work, className = "") {
    const button = make("button", { type: "button", className, textContent: text, ariaLabel: `${text}: ${label}` });
    button.addEventListener("click", async () => {
      button.disabled = true;
      if (await this.#act(work)) await this.#fill(this.kind);
      button.disabled = false;
    });
    return button;
  }

  /** Do it, with the writer's key where it is asked for; whether it was done. */
  async #act(work) {
    for (;;) {
      try {
        await work();
        tell("");
        return true;
      } catch (error) {
        if (error.status === 401 && (await this.askKey())) continue;
        tell(error.message);
        return false;
      }
    }
  }
}

/** What is said below a picture of a group, or of a group of copies. */
function caption(kind, image, group) {
  if (kind === "groups") return image.name;
  const size = `${image.width} × ${image.height} · ${bytesText(image.bytes)}`;
  return image === group.keep || image.name === group.keep.name ? size : `${image.name} · ${size}`;
}

/** The months that pictures are of, in words. */
function period(images) {
  const months = images.map(({ metadata }) => String(metadata?.date ?? "").slice(0, 7)).filter((month) => /^\d{4}-\d\d$/.test(month)).sort();
  const [first, last] = [months[0], months.at(-1)];
  return !months.length ? "" : first === last ? monthName(first) : `${monthName(first)} – ${monthName(last)}`;
}

/** A form, not a fetch: the browser writes what comes to disk. */
function archiveForm(ids, title) {
  const button = make("button", { type: "submit", textContent: "Download", ariaLabel: `Download ${title} as a zip` });
  return make("form", { method: "post", action: "api/archive" }, make("input", { type: "hidden", name: "ids", value: ids.join(",") }), button);
}
