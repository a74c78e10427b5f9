// Groups and copies as views: what was found, finding more, and saying what does not belong together.

import * as api from "./api.js";
import { plural, tell } from "./notice.js";

const element = (id) => document.getElementById(id);
const POLL_MS = 400;
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const WORDS = {
  groups: { button: "Find groups", none: "No groups yet", hint: "Photos of the same place or thing, found by local features that agree." },
  duplicates: { button: "Find copies", none: "No copies yet", hint: "Exact and near copies, laid over each other and compared. Nothing is moved or removed." },
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
  }

  /** The view, with its button at once; what was found follows. */
  async show(kind) {
    this.kind = kind;
    const { button, hint } = WORDS[kind];
    const find = make("button", { type: "button", id: "find", className: "primary", textContent: button });
    find.addEventListener("click", () => this.#act(() => api.find(kind)).then((begun) => begun && this.#follow(kind)));
    this.list = make("div", { id: "sets" });
    this.state = make("p", { id: "finding", className: "hint", role: "status" });
    element("organise").replaceChildren(make("div", { className: "organise-head" }, make("p", { className: "hint", textContent: hint }), find), this.state, this.list);
    element("organise").hidden = false;
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
        return this.#fill(kind);
      }
      this.state.textContent = total ? `Comparing: ${done.toLocaleString()} of ${total.toLocaleString()} pairs` : "Looking for candidates…";
      await new Promise((resume) => setTimeout(resume, POLL_MS));
    }
  }

  async #fill(kind) {
    try {
      const answer = await api.sets(kind);
      if (this.kind !== kind) return;
      this.list.replaceChildren(...(answer.groups.length ? answer.groups.map((group) => this.#set(kind, group)) : [make("p", { className: "hint", textContent: WORDS[kind].none })]));
      element("summary").textContent = kind === "groups"
        ? `${plural(answer.images, "picture")} in ${plural(answer.total, "group")}`
        : `${plural(answer.copies, "copy", "copies")} of ${plural(answer.total, "picture")}, ${megabytes(answer.bytes)}`;
    } catch (error) {
      tell(error.message);
    }
  }

  #set(kind, group) {
    const images = kind === "groups" ? group.images : [group.keep, ...group.copies];
    const caption = (image) => kind === "groups" ? image.name : `${image.kind ? `${image.kind} copy` : `keep: ${group.reason}`} · ${image.width} × ${image.height} · ${megabytes(image.bytes)}`;
    const figures = images.map((image) => {
      const tile = make("button", { type: "button", className: "pick", title: image.name, ariaLabel: `Open ${image.name}` }, make("img", { src: api.thumbnailUrl(image.id), alt: "", loading: "lazy" }));
      tile.addEventListener("click", () => this.open(image, images, tile));
      const figure = make("figure", { className: image === group.keep ? "keep" : "" }, tile, make("figcaption", { textContent: caption(image) }));
      if (kind === "groups" && images.length > 1) figure.append(this.#button(`Not this`, `${image.name} does not belong to this group`, () => api.leaveGroup(image.id)));
      return figure;
    });
    const title = kind === "groups" ? `${images.length} pictures` : group.keep.name;
    const head = make("header", {}, make("h2", { textContent: title }));
    if (kind === "duplicates") head.append(this.#button("Not copies", `${group.keep.name} and these are no copies`, () => api.takeApart(images.map(({ id }) => id))));
    head.append(archiveForm(images.map(({ id }) => id), title));
    return make("section", { className: "set", ariaLabel: title }, head, make("div", { className: "row" }, ...figures));
  }

  #button(text, label, work) {
    const button = make("button", { type: "button", textContent: text, ariaLabel: `${text}: ${label}` });
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

/** A form, not a fetch: the browser writes what comes to disk. */
function archiveForm(ids, title) {
  const button = make("button", { type: "submit", textContent: "Download", ariaLabel: `Download ${title} as a zip` });
  return make("form", { method: "post", action: "api/archive" }, make("input", { type: "hidden", name: "ids", value: ids.join(",") }), button);
}
