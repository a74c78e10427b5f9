// The dialog that shows why a picture was found: both pictures, token by token.

import { explain, imageUrl } from "./api.js";
import { describe } from "./grid.js";
import { MatchLines } from "./matches.js";
import { sentence } from "./notice.js";

const element = (id) => document.getElementById(id);
const colour = (token) => `var(--token-${(token % 8) + 1})`;
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
const percent = (value) => `${(value * 100).toFixed(0).replace("-", "−")} %`;
const TOKENS_NOTE = "A token gathers one kind of pattern: point at one, or tap it, to see what it compared.";
const PAINTED_SIDE = 900; // pixels: enough for the screen, and quick to paint

export class WhyDialog {
  /** actions: {step(by), search(id), large(hit, opener), closed()}; query() gives {query, box, source} of the search on the page. */
  constructor(query, actions) {
    this.dialog = element("why");
    this.query = query;
    this.opener = null;
    this.lines = new MatchLines(element("why-pair"), element("why-query"), element("why-other"));
    element("why-close").addEventListener("click", () => this.dialog.close());
    element("why-previous").addEventListener("click", () => actions.step(-1));
    element("why-next").addEventListener("click", () => actions.step(1));
    element("why-large").addEventListener("click", () => actions.large(this.hit, element("why-large")));
    element("why-search").addEventListener("click", () => {
      this.dialog.close();
      actions.search(this.hit.id);
    });
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") actions.step(-1);
      if (event.key === "ArrowRight") actions.step(1);
    });
    this.dialog.addEventListener("close", () => {
      this.request?.abort();
      // The grid may have been filled anew meanwhile.
      const back = this.opener?.isConnected ? this.opener : document.querySelector(`.tile[data-id="${this.hit.id}"]`);
      back?.focus();
      actions.closed();
    });
  }

  close() {
    this.dialog.close();
  }

  async show(hit, count, opener) {
    this.hit = hit;
    this.opener = opener;
    this.request?.abort();
    this.request = new AbortController();
    const { query, box, source } = this.query();
    if (!this.dialog.open) this.dialog.showModal();
    const ranked = hit.rank !== undefined; // a link may ask why of a picture that is not among the results
    element("why-title").textContent = ranked ? `Result ${hit.rank + 1} of ${count}` : "Not among the results";
    element("why-previous").disabled = !ranked || hit.rank === 0;
    element("why-next").disabled = !ranked || hit.rank === count - 1;
    this.lines.show([]);
    const link = Object.assign(document.createElement("a"), { href: imageUrl(hit.id), target: "_blank", textContent: hit.name });
    link.title = "Open the picture by itself";
    element("why-name").replaceChildren(link, describe(hit).slice(hit.name.length));
    element("why-tokens").replaceChildren();
    element("why-matrix").replaceChildren();
    element("why-sum").hidden = element("why-bar").hidden = true;
    const left = layers(element("why-query"), source, "your query");
    const right = layers(element("why-other"), imageUrl(hit.id), ranked ? `result ${hit.rank + 1}: ${hit.name}` : hit.name);
    element("why-note").textContent = "Looking at both pictures…";
    try {
      const answer = await explain(query, box, hit.id, this.request.signal);
      if (this.hit !== hit) return;
      this.#fill(answer, left, right);
    } catch (error) {
      if (error.name !== "AbortError") element("why-note").replaceChildren(...sentence(error.message));
    }
  }

  #fill(answer, left, right) {
    const tokens = answer.query.tokens.length;
    const hasTokens = answer.query.method === "tokens";
    const verified = Boolean(answer.matches?.verified);
    element("why-note").textContent = [matchesNote(answer.matches), hasTokens ? "" : answer.query.note].join(" ").trim();
    this.lines.show(answer.matches?.points ?? []);
    const painters = [
      ...answer.query.tokens.map((token, index) => addLayer(left, token, index, answer.query.crop)),
      ...answer.other.tokens.map((token, index) => addLayer(right, token, index, null)),
    ];
    if (answer.query.crop) addFrame(left, "crop", answer.query.crop);
    const columns = answer.matrix[0].map((_, j) => answer.matrix.reduce((sum, row) => sum + row[j], 0));
    const shares = columns.slice(0, answer.other.tokens.length);
    const order = shares.map((_, index) => index).sort((a, b) => shares[b] - shares[a]);
    if (hasTokens) showSum(answer.score, order, shares);
    let kept = null;
    const light = (token) => {
      for (const paint of painters) paint(token);
      element("why-pair").classList.toggle("by-token", token !== null);
      for (const side of [left, right]) {
        side.classList.toggle("dim", token !== null);
        side.querySelectorAll("[data-token]").forEach((node) =>
          node.classList.toggle("on", token !== null ? Number(node.dataset.token) === token : node.dataset.best === "1"));
      }
      for (const button of buttons) {
        button.classList.toggle("lit", Number(button.dataset.token) === token);
        button.setAttribute("aria-pressed", String(Number(button.dataset.token) === kept));
      }
    };
    const buttons = order.map((index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.style.setProperty("--colour", colour(index));
      button.setAttribute("aria-pressed", "false");
      button.append(...(hasTokens ? part(`Token ${index + 1}`, shares[index], answer.score) : ["Map"]));
      // Hover and focus light a token for a moment; a click or a tap keeps it lit.
      button.addEventListener("pointermove", () => button.classList.contains("lit") || light(index)); // not one that appears under a pointer at rest
      button.addEventListener("focus", () => light(index));
      for (const type of ["pointerleave", "blur"]) button.addEventListener(type, () => light(kept));
      button.addEventListener("click", () => {
        kept = kept === index ? null : index;
        light(kept ?? index);
      });
      button.dataset.token = index;
      return button;
    });
    const items = buttons.map((button) => listItem(button));
    element("why-tokens").replaceChildren(...items);
    // At rest, the two strongest tokens are framed.
    for (const side of [left, right]) {
      side.querySelectorAll(".region").forEach((region) => {
        const place = order.indexOf(Number(region.dataset.token));
        const best = !verified && place < Math.min(2, tokens); // frames would hide what is surer
        region.classList.toggle("other-corner", place % 2 === 1); // frames often begin at the same corner
        region.dataset.best = best ? "1" : "0";
        region.classList.toggle("on", best);
      });
    }
    element("why-matrix").replaceChildren(matrixTable(answer.matrix));
    element("why-matrix").parentElement.hidden = !hasTokens;
  }
}

function matchesNote(matches) {
  if (!matches) return "";
  if (matches.verified) return `Verified: ${matches.inliers} places of both pictures agree.`;
  return "Not verified: no group of places agrees for certain.";
}

/** What the similarity is made of: a sentence, and a bar with a piece for each token that spoke for it. */
function showSum(score, order, shares) {
  element("why-sum").textContent = `Similarity ${score.toFixed(3)} is the sum of what each token added. ${TOKENS_NOTE}`;
  const pieces = order.map((index) => [colour(index), shares[index]]);
  element("why-bar").replaceChildren(...pieces.filter(([, value]) => value > 0).map(([paint, value]) => {
    const piece = document.createElement("i");
    piece.style.background = paint;
    piece.style.flexGrow = 1000 * value; // below 1 in all, they would leave room
    return piece;
  }));
  element("why-sum").hidden = element("why-bar").hidden = false;
}

/** A name, what it added, and how much of the whole that is. */
function part(name, value, score) {
  const added = document.createElement("span");
  added.className = "added";
  added.textContent = signed(value);
  const share = document.createElement("span");
  share.className = "share";
  share.textContent = score > 0 ? percent(value / score) : "";
  return [name, added, share];
}

function listItem(...children) {
  const item = document.createElement("li");
  item.append(...children);
  return item;
}

function layers(holder, source, label) {
  const picture = document.createElement("img");
  picture.src = source;
  picture.alt = label;
  picture.addEventListener("load", () => {
    holder.style.setProperty("--ratio", (picture.naturalWidth / picture.naturalHeight).toFixed(4));
    const pictures = [...element("why-pair").querySelectorAll("img")];
    element("why-pair").classList.toggle("upright", pictures.every((one) => one.naturalWidth < one.naturalHeight)); // side by side on a phone, too
  });
  holder.classList.remove("dim");
  holder.replaceChildren(picture);
  return holder;
}

/** A frame on a picture, at a box in fractions of it. */
function addFrame(holder, name, [x0, y0, x1, y1]) {
  const frame = document.createElement("div");
  frame.className = name;
  Object.assign(frame.style, {
    left: `${x0 * 100}%`, top: `${y0 * 100}%`, width: `${(x1 - x0) * 100}%`, height: `${(y1 - y0) * 100}%`,
  });
  holder.append(frame);
  return frame;
}

/** A token's light, a canvas over the picture, and its region, a frame. crop: the query's box in fractions, or null.
 *
 * Returns what paints the light when it is this token's turn.
 */
function addLayer(holder, token, index, crop) {
  const [x0, y0, x1, y1] = crop ?? [0, 0, 1, 1];
  const within = ([a, b, c, d]) => [x0 + a * (x1 - x0), y0 + b * (y1 - y0), x0 + c * (x1 - x0), y0 + d * (y1 - y0)];
  const picture = holder.querySelector("img");
  const canvas = document.createElement("canvas");
  canvas.dataset.token = index;
  const [left, top, right, bottom] = within([0, 0, 1, 1]);
  Object.assign(canvas.style, {
    left: `${left * 100}%`, top: `${top * 100}%`, width: `${(right - left) * 100}%`, height: `${(bottom - top) * 100}%`,
  });
  holder.append(canvas);
  const region = addFrame(holder, "region", within(token.box));
  region.dataset.token = index;
  region.setAttribute("aria-hidden", "true"); // the tokens' buttons say it
  region.style.setProperty("--colour", colour(index));
  const badge = document.createElement("b");
  badge.textContent = index + 1;
  region.append(badge);
  let painted = false;
  return (lit) => {
    if (lit !== index || painted) return;
    painted = true;
    picture.decode().then(() => picture, () => null).then((shown) => paint(canvas, shown, mask(token.map), [x0, y0, x1, y1], index));
  };
}

/** The picture in its own colours where the map is strong, with a breath of the token's colour; the rest stays clear. */
function paint(canvas, picture, map, [x0, y0, x1, y1], index) {
  const width = (picture?.naturalWidth ?? map.width) * (x1 - x0);
  const height = (picture?.naturalHeight ?? map.height) * (y1 - y0);
  const scale = Math.min(1, PAINTED_SIDE / Math.max(width, height));
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.drawImage(map, 0, 0, canvas.width, canvas.height);
  if (picture) {
    context.globalCompositeOperation = "source-in";
    context.drawImage(
      picture, x0 * picture.naturalWidth, y0 * picture.naturalHeight, width, height, 0, 0, canvas.width, canvas.height,
    );
  }
  context.globalCompositeOperation = "source-atop";
  context.globalAlpha = picture ? 0.28 : 1;
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--token-${(index % 8) + 1}`);
  context.fillRect(0, 0, canvas.width, canvas.height);
}

/** A map's bytes as the opacity of a canvas, a pixel a place. */
function mask({ width, height, data }) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  Array.from(atob(data), (letter, i) => (pixels.data[4 * i + 3] = 255 * (letter.charCodeAt(0) / 255) ** 0.7)); // dim ones stay visible
  context.putImageData(pixels, 0, 0);
  return canvas;
}

function matrixTable(matrix) {
  const table = document.createElement("table");
  const name = (index) => `token ${index + 1}`;
  const head = table.createTHead().insertRow();
  for (const text of ["query ↓ result →", ...matrix.map((_, j) => name(j))]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = text;
    head.append(cell);
  }
  const peak = Math.max(...matrix.flat().map(Math.abs), 1e-9);
  matrix.forEach((row, i) => {
    const line = table.insertRow();
    const label = document.createElement("th");
    label.scope = "row";
    label.textContent = name(i);
    line.append(label);
    row.forEach((value, j) => {
      const cell = line.insertCell();
      cell.textContent = value.toFixed(3).replace("-", "−");
      const strength = Math.round((Math.abs(value) / peak) * 45);
      cell.style.background = `color-mix(in srgb, ${value >= 0 ? "#0072b2" : "#d55e00"} ${strength}%, transparent)`;
    });
  });
  return table;
}
