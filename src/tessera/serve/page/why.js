// The dialog that shows why a picture was found: both pictures, token by token.

import { explain, imageUrl } from "./api.js";

const element = (id) => document.getElementById(id);
const colour = (token) => `var(--token-${(token % 8) + 1})`;
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
const percent = (value) => `${(value * 100).toFixed(0).replace("-", "−")} %`;
const TOKENS_NOTE = "Each token has learnt to gather one kind of pattern. Point at one, or tap it, to see what it compared.";

export class WhyDialog {
  /** actions: {previous(), next(), search(id)}; query() gives {query, box, source} of the search on the page. */
  constructor(query, actions) {
    this.dialog = element("why");
    this.query = query;
    this.opener = null;
    element("why-close").addEventListener("click", () => this.dialog.close());
    element("why-previous").addEventListener("click", actions.previous);
    element("why-next").addEventListener("click", actions.next);
    element("why-search").addEventListener("click", () => {
      this.dialog.close();
      actions.search(this.hit.id);
    });
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") actions.previous();
      if (event.key === "ArrowRight") actions.next();
    });
    this.dialog.addEventListener("close", () => {
      this.request?.abort();
      // The grid may have been filled anew meanwhile.
      const back = this.opener?.isConnected ? this.opener : document.querySelector(`.tile[data-id="${this.hit.id}"]`);
      back?.focus();
    });
  }

  get open() {
    return this.dialog.open;
  }

  async show(hit, opener) {
    this.hit = hit;
    this.opener = opener;
    this.request?.abort();
    this.request = new AbortController();
    const { query, box, source } = this.query();
    if (!this.dialog.open) this.dialog.showModal();
    element("why-title").textContent = `Result ${hit.rank + 1}, similarity ${hit.score.toFixed(3)}`;
    element("why-name").textContent = describe(hit);
    element("why-tokens").replaceChildren();
    element("why-matrix").replaceChildren();
    element("why-sum").hidden = element("why-bar").hidden = true;
    const left = layers(element("why-query"), source, "query picture");
    const right = layers(element("why-other"), imageUrl(hit.id), `result ${hit.rank + 1}: ${hit.name}`);
    element("why-note").textContent = "Looking at both pictures…";
    try {
      const answer = await explain(query, box, hit.id, this.request.signal);
      if (this.hit !== hit) return;
      this.#fill(answer, left, right);
    } catch (error) {
      if (error.name !== "AbortError") element("why-note").textContent = error.message;
    }
  }

  #fill(answer, left, right) {
    const tokens = answer.query.tokens.length;
    const hasTokens = answer.query.method === "tokens";
    element("why-note").textContent = hasTokens ? TOKENS_NOTE : answer.query.note;
    answer.query.tokens.forEach((token, index) => addLayer(left, token, index, answer.query.crop));
    answer.other.tokens.forEach((token, index) => addLayer(right, token, index, null));
    const columns = answer.matrix[0].map((_, j) => answer.matrix.reduce((sum, row) => sum + row[j], 0));
    const shares = columns.slice(0, answer.other.tokens.length);
    const rest = columns.slice(shares.length).reduce((sum, value) => sum + value, 0);
    const order = shares.map((_, index) => index).sort((a, b) => shares[b] - shares[a]);
    if (hasTokens) showSum(answer.score, order, shares, rest);
    let kept = null;
    const light = (token) => {
      for (const side of [left, right]) {
        side.classList.toggle("dim", token !== null);
        side.querySelectorAll("[data-token]").forEach((node) =>
          node.classList.toggle("on", token !== null ? Number(node.dataset.token) === token : node.dataset.best === "1"));
      }
      for (const button of buttons) button.setAttribute("aria-pressed", String(Number(button.dataset.token) === token));
    };
    const buttons = order.map((index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.style.setProperty("--colour", colour(index));
      button.setAttribute("aria-pressed", "false");
      button.append(...(hasTokens ? part(`Token ${index + 1}`, shares[index], answer.score) : ["Map"]));
      // Hover and focus light a token for a moment; a click or a tap keeps it lit.
      button.addEventListener("pointerenter", () => light(index));
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
    if (hasTokens) {
      const constant = listItem(...part("The rest", rest, answer.score));
      constant.className = "rest";
      constant.title = "The descriptor's constant part, which no region of the picture made";
      items.push(constant);
    }
    element("why-tokens").replaceChildren(...items);
    // At rest, the two strongest tokens are framed.
    for (const side of [left, right]) {
      side.querySelectorAll(".region").forEach((region) => {
        const place = order.indexOf(Number(region.dataset.token));
        const best = place < Math.min(2, tokens);
        region.classList.toggle("other-corner", place % 2 === 1); // frames often begin at the same corner
        region.dataset.best = best ? "1" : "0";
        region.classList.toggle("on", best);
      });
    }
    element("why-matrix").replaceChildren(matrixTable(answer.matrix));
  }
}

/** What the similarity is made of: a sentence, and a bar with a piece for each token that spoke for it. */
function showSum(score, order, shares, rest) {
  element("why-sum").textContent = `Similarity ${score.toFixed(3)} is the sum of what each token added:`;
  const pieces = [...order.map((index) => [colour(index), shares[index]]), ["var(--line)", rest]];
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

function describe(hit) {
  const extras = Object.entries(hit.metadata ?? {}).map(([key, value]) => `${key}: ${value}`);
  return [hit.name, ...extras].join(" · ");
}

function layers(holder, source, label) {
  const picture = document.createElement("img");
  picture.src = source;
  picture.alt = label;
  picture.addEventListener("load", () => {
    holder.style.setProperty("--ratio", (picture.naturalWidth / picture.naturalHeight).toFixed(4));
  });
  holder.classList.remove("dim");
  holder.replaceChildren(picture);
  return holder;
}

/** The token's map as a canvas and its region as a frame. crop: the query's box in fractions, or null for the whole. */
function addLayer(holder, token, index, crop) {
  const [cx0, cy0, cx1, cy1] = crop ?? [0, 0, 1, 1];
  const place = (x0, y0, x1, y1) => ({
    left: `${(cx0 + x0 * (cx1 - cx0)) * 100}%`, top: `${(cy0 + y0 * (cy1 - cy0)) * 100}%`,
    width: `${(x1 - x0) * (cx1 - cx0) * 100}%`, height: `${(y1 - y0) * (cy1 - cy0) * 100}%`,
  });
  const canvas = document.createElement("canvas");
  canvas.dataset.token = index;
  canvas.width = token.map.width;
  canvas.height = token.map.height;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(token.map.width, token.map.height);
  const [red, green, blue] = rgb(index);
  const bytes = Uint8Array.from(atob(token.map.data), (letter) => letter.charCodeAt(0));
  for (let i = 0; i < bytes.length; i += 1) pixels.data.set([red, green, blue, Math.round(bytes[i] * 0.85)], i * 4);
  context.putImageData(pixels, 0, 0);
  Object.assign(canvas.style, { inset: "auto", ...place(0, 0, 1, 1) });

  const region = document.createElement("div");
  region.className = "region";
  region.dataset.token = index;
  region.style.setProperty("--colour", colour(index));
  Object.assign(region.style, place(...token.box));
  const badge = document.createElement("b");
  badge.textContent = index + 1;
  region.append(badge);
  holder.append(canvas, region);
}

function rgb(index) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(`--token-${(index % 8) + 1}`).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

function matrixTable(matrix) {
  const table = document.createElement("table");
  const last = matrix.length - 1;
  const name = (index) => (index === last ? "constant" : `token ${index + 1}`);
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
    for (const value of row) {
      const cell = line.insertCell();
      cell.textContent = value.toFixed(3);
      const strength = Math.round((Math.abs(value) / peak) * 45);
      cell.style.background = `color-mix(in srgb, ${value >= 0 ? "#0072b2" : "#d55e00"} ${strength}%, transparent)`;
    }
  });
  return table;
}
