// Filters by metadata: what there is to choose from, and chips for those in use.

import { facets } from "./api.js";

const element = (id) => document.getElementById(id);
const WORDS = { "=": ":", "~": ":", ">=": " from", "<=": " to", "!=": " not" };

/** A filter as a person would say it. */
function inWords(filter) {
  const [, key, operator, value] = filter.match(/^(.+?)(!=|>=|<=|>|<|=|~)(.*)$/s) ?? [];
  return key ? `${key}${WORDS[operator] ?? ` ${operator}`} ${value}` : filter;
}
const OPERATOR = /^(!=|>=|<=|>|<|=|~)?\s*(.*)$/;

export class Filters {
  /** change(where): the filters in use are others now. */
  constructor(change) {
    this.change = change;
    this.where = [];
    element("filters").addEventListener("submit", (event) => {
      event.preventDefault();
      const [, operator = "=", value] = element("filter-value").value.trim().match(OPERATOR);
      if (!value) return;
      element("filter-value").value = "";
      const filter = `${element("filter-key").value}${operator}${value}`;
      if (!this.where.includes(filter)) change([...this.where, filter]);
    });
  }

  /** On a phone they are folded away. */
  fold(isFolded) {
    element("filters").classList.toggle("open", !isFolded);
    element("filter-toggle").setAttribute("aria-expanded", String(!isFolded));
  }

  async load() {
    const { facets: known, places } = await facets();
    if (places.length) known.near = places.map(({ latitude, longitude }) => `${latitude.toFixed(3)},${longitude.toFixed(3)},2km`);
    const keys = Object.keys(known);
    const chosen = element("filter-key").value;
    element("filters").hidden = keys.length === 0;
    element("filter-key").replaceChildren(...keys.map((key) => new Option(key, key, false, key === chosen)));
    const fillValues = () =>
      element("filter-values").replaceChildren(...(known[element("filter-key").value] ?? []).map((value) => new Option(value)));
    element("filter-key").onchange = fillValues; // this runs again whenever the service was away
    fillValues();
  }

  show(where) {
    this.where = where;
    element("chips").replaceChildren(...where.map((filter) => {
      const item = document.createElement("li");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = `${inWords(filter)} ✕`;
      button.title = filter;
      button.setAttribute("aria-label", `Remove the filter ${inWords(filter)}`);
      button.addEventListener("click", () => this.change(this.where.filter((other) => other !== filter)));
      item.append(button);
      return item;
    }));
  }
}
