// One picture on a dark ground: its neighbours, zoom by wheel, fingers or keys, and what is known of it.

import { imageUrl, originalUrl, path, reveal, sameThing, thumbnailUrl } from "./api.js";
import { tell } from "./notice.js";
import { ZoomRoom } from "./zoom.js";

const element = (id) => document.getElementById(id);
const SHOWN = "tessera.facts"; // whether this reader wants to see what is known of a picture
const MAP = "https://www.openstreetmap.org/";

/** What is known of a picture, in words. */
function facts({ width, height, metadata }) {
  const { date, latitude, longitude, ...others } = metadata ?? {};
  const day = /^\d{4}-\d\d-\d\d/.test(date) ? new Date(date.length === 10 ? `${date}T00:00` : date) : NaN; // as the camera's clock had it
  const said = isNaN(day) ? date : day.toLocaleString(undefined, date.length === 10 ? { dateStyle: "long" } : { dateStyle: "long", timeStyle: "short" });
  return Object.entries({
    date: said,
    size: width ? `${width} × ${height}` : undefined,
    place: latitude !== undefined && longitude !== undefined ? placeLink(latitude, longitude) : undefined,
    ...others,
  }).filter(([, value]) => (value ?? "") !== "");
}

/** A path may go on in the next line after a slash, not amid a word. */
function breakable(text) {
  return text.split(/(?<=[/\\])/).flatMap((part) => [part, document.createElement("wbr")]);
}

/** A place as a link to a map of elsewhere, which nothing asks for until it is followed. */
function placeLink(latitude, longitude) {
  const link = Object.assign(document.createElement("a"), { textContent: `${latitude}, ${longitude}`, target: "_blank", rel: "noreferrer", title: "On a map (openstreetmap.org)" });
  link.href = `${MAP}?mlat=${latitude}&mlon=${longitude}#map=15/${latitude}/${longitude}`;
  return link;
}

export class LargeDialog {
  /** neighbour(hit, by): the picture before or after; extend(hit): resolves when what is around it is known; place(hit): "3 of 59"; search(id): begin a search with it; opened(), closed(): the dialog was. */
  constructor({ neighbour, place, extend, search, opened, closed }) {
    this.dialog = element("large");
    Object.assign(this, { neighbour, place, extend, opened, closed });
    this.room = new ZoomRoom(element("large-room"), {
      step: (by) => this.#step(by),
      leave: () => this.dialog.close(),
      changed: (isZoomed) => element("large-zoom").setAttribute("aria-pressed", String(isZoomed)),
    });
    element("large-close").addEventListener("click", () => this.dialog.close());
    element("large-previous").addEventListener("click", () => this.#step(-1));
    element("large-next").addEventListener("click", () => this.#step(1));
    element("large-search").addEventListener("click", () => this.#search(search));
    element("large-path").addEventListener("click", async () => {
      const { path: text } = await path(this.hit.id);
      await navigator.clipboard?.writeText(text).catch(() => {});
      element("large-path").textContent = "Copied";
      this.#fact("path", text);
      this.#showFacts(true);
    });
    element("large-reveal").addEventListener("click", () => reveal(this.hit.id).catch((error) => tell(error.message)));
    element("large-zoom").addEventListener("click", () => this.room.toggle());
    element("large-info").addEventListener("click", () => this.#showFacts(element("large-side").hidden, true));
    this.dialog.addEventListener("keydown", (event) => this.#key(event, search));
    this.dialog.addEventListener("close", () => {
      this.room.empty();
      const tile = document.querySelector(`.tile[data-id="${this.hit.id}"]`);
      if (this.opener) (this.opener.closest("dialog") || !tile ? this.opener : tile).focus();
      this.closed();
    });
    const wanted = localStorage.getItem(SHOWN);
    this.#showFacts(wanted === null ? matchMedia("(min-width: 1000px)").matches : wanted === "yes");
  }

  show(hit, opener) {
    this.hit = hit;
    this.opener = opener;
    if (!this.dialog.open) {
      this.dialog.showModal();
      this.opened();
    }
    const picture = this.room.show({ source: imageUrl(hit.id), preview: thumbnailUrl(hit.id), width: hit.width, height: hit.height, name: hit.name });
    picture.addEventListener("load", () => this.hit === hit && this.#around().forEach((other) => other && (new Image().src = imageUrl(other.id))));
    picture.addEventListener("error", () => this.hit === hit && this.#fact("note", "The file has gone, or cannot be read any more."));
    element("large-title").textContent = hit.name;
    this.#showPlace();
    this.extend(hit).then(() => this.hit === hit && this.#showPlace(), () => {});
    element("large-path").textContent = "Copy path";
    Object.assign(element("large-download"), { href: originalUrl(hit.id), download: hit.name });
    element("large-facts").replaceChildren();
    for (const [name, value] of facts(hit)) this.#fact(name, value);
    if (!element("large-path").hidden && !hit.metadata?.folder) this.#showFolder(hit);
    this.#showSameThing(hit);
    element("large-search").focus({ preventScroll: true });
  }

  #around = () => [1, -1].map((by) => this.neighbour(this.hit, by));

  #showPlace() {
    const [next, previous] = this.#around();
    element("large-next").disabled = !next;
    element("large-previous").disabled = !previous;
    element("large-place").textContent = this.place(this.hit);
  }

  #step(by) {
    const next = this.neighbour(this.hit, by);
    if (next) this.show(next, this.opener);
  }

  #search(search) {
    this.opener = null;
    this.dialog.close();
    search(this.hit.id);
  }

  #key(event, search) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const work = {
      ArrowLeft: () => this.#step(-1), ArrowRight: () => this.#step(1),
      "+": () => this.room.zoomBy(1.5), "=": () => this.room.zoomBy(1.5), "-": () => this.room.zoomBy(1 / 1.5), 0: () => this.room.fit(),
      "?": () => element("keys").showModal(),
      i: () => element("large-info").click(), d: () => element("large-download").click(), s: () => this.#search(search),
    }[event.key];
    if (!work || (event.shiftKey && event.key.startsWith("Arrow"))) return; // with shift a zoomed picture moves
    event.preventDefault();
    work();
  }

  #showFacts(isShown, isWish = false) {
    element("large-side").hidden = !isShown;
    element("large-info").setAttribute("aria-expanded", String(isShown));
    if (isWish) localStorage.setItem(SHOWN, isShown ? "yes" : "no");
  }

  /** Where the file lies, for whoever sits at the machine that it lies on. */
  async #showFolder(hit) {
    const { path: text } = await path(hit.id).catch(() => ({ path: "" }));
    if (text && this.hit === hit) this.#fact("folder", text.slice(0, text.lastIndexOf("/")) || "/");
  }

  /** The other photos of its group. */
  async #showSameThing(hit) {
    element("large-same").hidden = true;
    const { images } = await sameThing(hit.id).catch(() => ({ images: [] }));
    const others = images.filter(({ id }) => id !== hit.id);
    if (this.hit !== hit || !others.length) return;
    element("large-others").replaceChildren(...others.map((other) => {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "pick", title: other.name, ariaLabel: `Open ${other.name}` });
      button.append(Object.assign(new Image(), { src: thumbnailUrl(other.id), alt: "", loading: "lazy" }));
      button.addEventListener("click", () => this.show(other, this.opener));
      return button;
    }));
    element("large-same").hidden = false;
  }

  #fact(name, value) {
    const fact = document.createElement("div");
    const said = document.createElement("dd");
    said.append(...(value instanceof Node ? [value] : breakable(String(value))));
    fact.append(Object.assign(document.createElement("dt"), { textContent: name }), said);
    element("large-facts").append(fact);
  }
}
