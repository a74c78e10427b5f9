// The grid of pictures: tiles in rows of even height, walked by arrow keys.

import { thumbnailUrl } from "./api.js";

const plainText = ({ name, metadata }) => [name, ...Object.entries(metadata ?? {}).map(([key, value]) => `${key}: ${value}`)];
export const describe = (hit) => plainText(hit).join(" · ");

/** Whether its places were compared with the query's, and whether they agree. */
const wasVerified = (hit) => (hit.verified ?? null) !== null || (hit.inliers ?? null) !== null;
const isCertain = (hit) => hit.verified ?? hit.inliers > 0;

/** Width to height of a picture's tile. */
export const tileRatio = ({ width, height }) => Math.min(3, Math.max(0.4, width / height || 1));

function heading(text, warns = false) {
  return Object.assign(document.createElement("h2"), { className: warns ? "section none" : "section", textContent: text });
}

export class Grid {
  /** open(hit, tile): a picture was clicked. */
  constructor(element, open) {
    this.element = element;
    this.open = open;
    element.addEventListener("keydown", (event) => {
      const next = neighbour([...element.querySelectorAll(".tile")], event.target, event.key);
      if (!next) return;
      event.preventDefault();
      next.focus();
    });
  }

  /** ownId: the query, where it is a picture of the gallery. */
  replace(hits, ownId) {
    this.element.replaceChildren();
    window.scrollTo({ top: 0 });
    this.append(hits, ownId);
  }

  /** room: where in the grid. */
  append(hits, ownId, room = this.element) {
    const tiles = (some) => some.map((hit) => this.#tile(hit, hits.length, hit.id === ownId));
    if (!hits.some(wasVerified)) return room.append(...tiles(hits));
    const [certain, others] = [hits.filter(isCertain), hits.filter((hit) => !isCertain(hit))];
    const filler = Object.assign(document.createElement("i"), { className: "filler" }); // one hit is no wider for being alone
    this.element.append(heading(certain.length ? "Verified" : "Nothing certain", !certain.length), ...tiles(certain), filler);
    if (others.length) this.element.append(heading(certain.length ? "Less certain" : "The most alike"), ...tiles(others));
  }

  tile(id) {
    return this.element.querySelector(`[data-id="${id}"]`);
  }

  #tile(hit, count, isQuery) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "tile";
    button.dataset.id = hit.id;
    button.dataset.name = hit.name;
    button.style.setProperty("--ratio", tileRatio(hit).toFixed(3));
    const picture = document.createElement("img");
    picture.loading = "lazy";
    picture.decoding = "async";
    picture.alt = "";
    picture.addEventListener("error", () => button.classList.add("gone"));
    picture.src = thumbnailUrl(hit.id);
    button.append(picture, Object.assign(document.createElement("span"), { className: "check" }));
    button.title = plainText(hit).join("\n");
    button.addEventListener("click", () => this.open(hit, button));
    if (hit.score === undefined) {
      button.setAttribute("aria-label", `Open ${plainText(hit).join(", ")}`);
      return button;
    }
    button.setAttribute("aria-label", `Result ${hit.rank + 1} of ${count}: ${hit.name}, score ${hit.score.toFixed(2)}. ${[...plainText(hit).slice(1), "See why."].join(". ")}`);
    const score = document.createElement("span");
    score.className = "score";
    const sure = (hit.probability ?? null) === null ? hit.score.toFixed(2) : `${Math.round(100 * hit.probability)} %`;
    score.textContent = sure + (hit.inliers ? ` · ${hit.inliers} matches` : "") + (isQuery ? " · the query" : "");
    button.append(score);
    return button;
  }
}

/** The tile that an arrow key leads to: the next in the row, or the nearest one of the next row. */
function neighbour(tiles, tile, key) {
  const at = tiles.indexOf(tile);
  if (at < 0) return null;
  if (key === "ArrowRight") return tiles[at + 1];
  if (key === "ArrowLeft") return tiles[at - 1];
  if (key !== "ArrowDown" && key !== "ArrowUp") return null;
  const { top, left, width } = tile.getBoundingClientRect();
  const others = key === "ArrowDown" ? tiles.slice(at + 1) : tiles.slice(0, at).reverse();
  let best = null;
  let row = null;
  for (const other of others) {
    const frame = other.getBoundingClientRect();
    if (Math.abs(frame.top - top) < 2) continue;
    row ??= frame.top;
    if (Math.abs(frame.top - row) >= 2) break;
    const distance = Math.abs(frame.left + frame.width / 2 - left - width / 2);
    if (!best || distance < best.distance) best = { other, distance };
  }
  return best?.other ?? null;
}
