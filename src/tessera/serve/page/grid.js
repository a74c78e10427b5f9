// The grid of pictures: tiles in rows of even height, walked by arrow keys.

import { thumbnailUrl } from "./api.js";
import { plural } from "./notice.js";

const plainText = ({ name, metadata }) => [name, ...Object.entries(metadata ?? {}).map(([key, value]) => `${key}: ${value}`)];
export const describe = (hit) => plainText(hit).join(" · ");

const UNLIKELY = 0.1; // probability
const FEW = 6; // hits that there is room to show larger

/** Whether its places were compared with the query's, and whether they agree. */
const wasVerified = (hit) => (hit.verified ?? null) !== null || (hit.inliers ?? null) !== null;
const isCertain = (hit) => hit.verified ?? hit.inliers > 0;

/** What ends a row, so that one hit is no wider for being alone. */
const filler = () => Object.assign(document.createElement("i"), { className: "filler" });

/** Width to height of a picture's tile. */
export const tileRatio = ({ width, height }) => Math.min(3, Math.max(0.4, width / height || 1));

function heading(text, remark = "") {
  const title = Object.assign(document.createElement("h2"), { className: remark ? "section none" : "section", textContent: text });
  if (remark) title.append(Object.assign(document.createElement("span"), { textContent: remark }));
  return title;
}

export class Grid {
  /** open(hit, tile): a picture was clicked. */
  constructor(element, open) {
    this.element = element;
    this.open = open;
    element.addEventListener("keydown", (event) => {
      const next = neighbour([...element.querySelectorAll(".tile:not([hidden])")], event.target, event.key);
      if (!next) return;
      event.preventDefault();
      next.focus();
    });
  }

  /** ownId: the query, where it is a picture of the gallery; certain: false where the service is sure of none. */
  replace(hits, ownId, certain = true) {
    this.element.replaceChildren();
    window.scrollTo({ top: 0 });
    this.certain = certain;
    this.append(hits, ownId);
  }

  /** room: where in the grid. */
  append(hits, ownId, room = this.element) {
    const tiles = (some) => some.map((hit) => this.#tile(hit, hits.length, hit.id === ownId));
    if (!hits.some(wasVerified)) return room.append(...tiles(hits));
    const isSure = (hit) => this.certain && isCertain(hit);
    const [certain, others] = [hits.filter(isSure), hits.filter((hit) => !isSure(hit))];
    if (!certain.length) return this.element.append(heading("Nothing certain", ". No picture surely shows this; these are the most alike."), ...tiles(others));
    const found = tiles(certain);
    if (certain.length <= FEW) for (const tile of found) tile.classList.add("big");
    this.element.append(heading("Verified"), ...found, filler());
    const likely = others.filter((hit) => (hit.probability ?? 1) >= UNLIKELY);
    if (likely.length) this.element.append(heading("Less certain"), ...tiles(likely));
    const rest = others.filter((hit) => !likely.includes(hit));
    if (rest.length) this.#fold(rest, tiles(rest));
  }

  /** What is most unlikely is there when it is asked for, once something was found. */
  #fold(hits, tiles) {
    const text = `Show ${plural(hits.length, "more result", "more results")} below ${Math.round(100 * UNLIKELY)} %`;
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
    const room = Object.assign(document.createElement("div"), { className: "unfold" });
    room.append(button);
    for (const tile of tiles) tile.hidden = true;
    button.addEventListener("click", () => {
      for (const tile of tiles) tile.hidden = false;
      room.replaceWith(heading(`Below ${Math.round(100 * UNLIKELY)} %`));
      tiles[0].focus();
    });
    this.element.append(filler(), room, ...tiles);
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
    const matches = Object.assign(document.createElement("span"), { className: "matches", textContent: hit.inliers ? ` · ${plural(hit.inliers, "match", "matches")}` : "" });
    score.append(sure, matches, isQuery ? " · the query" : "");
    const foot = Object.assign(document.createElement("span"), { className: "foot" }); // whose width says what there is room for
    foot.append(score);
    button.append(foot);
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
