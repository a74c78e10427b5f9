// One picture, large: zoom, its neighbours, what is known of it, download, and the search that begins with it.

import { imageUrl, originalUrl, path, reveal } from "./api.js";
import { tell } from "./notice.js";

const element = (id) => document.getElementById(id);

/** What is known of a picture, in words. */
function facts({ width, height, metadata }) {
  const { date, latitude, longitude, ...others } = metadata ?? {};
  const day = /^\d{4}-\d\d-\d\d/.test(date) ? new Date(date.length === 10 ? `${date}T00:00` : date) : NaN; // as the camera's clock had it
  const said = isNaN(day) ? date : day.toLocaleString(undefined, date.length === 10 ? { dateStyle: "long" } : { dateStyle: "long", timeStyle: "short" });
  return Object.entries({
    size: width ? `${width} × ${height}` : undefined,
    date: said,
    place: latitude !== undefined && longitude !== undefined ? `${latitude}, ${longitude}` : undefined,
    ...others,
  }).filter(([, value]) => (value ?? "") !== "");
}

export class LargeDialog {
  /** neighbour(hit, by): the picture before or after; search(id): begin a search with it. */
  constructor({ neighbour, search }) {
    this.dialog = element("large");
    this.neighbour = neighbour;
    const step = (by) => {
      const next = neighbour(this.hit, by);
      if (next) this.show(next, this.opener);
    };
    element("large-close").addEventListener("click", () => this.dialog.close());
    element("large-previous").addEventListener("click", () => step(-1));
    element("large-next").addEventListener("click", () => step(1));
    element("large-search").addEventListener("click", () => {
      this.opener = null;
      this.dialog.close();
      search(this.hit.id);
    });
    element("large-path").addEventListener("click", async () => {
      const { path: text } = await path(this.hit.id);
      await navigator.clipboard?.writeText(text).catch(() => {});
      this.#fact("path", text);
    });
    element("large-reveal").addEventListener("click", () => reveal(this.hit.id).catch((error) => tell(error.message)));
    element("large-zoom").addEventListener("click", () => this.#zoom(!this.dialog.classList.contains("zoomed")));
    element("large-picture").addEventListener("click", (event) => this.#zoom(!this.dialog.classList.contains("zoomed"), event));
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") step(-1);
      if (event.key === "ArrowRight") step(1);
    });
    this.dialog.addEventListener("close", () => {
      element("large-picture").removeAttribute("src");
      const tile = document.querySelector(`.tile[data-id="${this.hit.id}"]`);
      if (this.opener) (tile ?? this.opener).focus();
    });
  }

  show(hit, opener) {
    this.hit = hit;
    this.opener = opener;
    this.#zoom(false);
    const picture = element("large-picture");
    picture.src = imageUrl(hit.id);
    picture.alt = hit.name;
    element("large-title").textContent = hit.name;
    element("large-previous").disabled = !this.neighbour(hit, -1);
    element("large-next").disabled = !this.neighbour(hit, 1);
    Object.assign(element("large-download"), { href: originalUrl(hit.id), download: hit.name });
    element("large-facts").replaceChildren();
    for (const [name, value] of facts(hit)) this.#fact(name, value);
    if (!element("large-path").hidden && !hit.metadata?.folder) this.#showFolder(hit);
    if (!this.dialog.open) this.dialog.showModal();
    element("large-search").focus();
  }

  /** Where the file lies, for whoever sits at the machine that it lies on. */
  async #showFolder(hit) {
    const { path: text } = await path(hit.id).catch(() => ({ path: "" }));
    if (text && this.hit === hit) this.#fact("folder", text.slice(0, text.lastIndexOf("/")) || "/");
  }

  #fact(name, value) {
    const fact = document.createElement("div");
    fact.append(
      Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: String(value) }),
    );
    element("large-facts").append(fact);
  }

  /** Fit to the screen, or the picture's own pixels, around the place that was clicked. */
  #zoom(on, event) {
    const room = element("large-room");
    const picture = element("large-picture");
    const frame = picture.getBoundingClientRect();
    const at = event ? [(event.clientX - frame.left) / frame.width, (event.clientY - frame.top) / frame.height] : [0.5, 0.5];
    this.dialog.classList.toggle("zoomed", on);
    element("large-zoom").setAttribute("aria-pressed", String(on));
    if (on) room.scrollTo(at[0] * picture.width - room.clientWidth / 2, at[1] * picture.height - room.clientHeight / 2);
  }
}
