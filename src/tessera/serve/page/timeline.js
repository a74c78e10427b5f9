// A gallery by date: a section a month, each as tall as its pictures will be, filled when it comes near; and the rail
// at the side that leads to any of them.

import { tileRatio } from "./grid.js";
import { plural } from "./notice.js";

const PAGE = 120;
const NEAR = "1200px 0px";
const SETTLE_MS = 90; // what the reader rushes past is not loaded
const GAP = 6;
const USUAL_RATIO = 1.4; // of a picture that is not here yet
const LABEL_PX = 22;
const element = (id) => document.getElementById(id);
const make = (name, className, ...children) => {
  const node = Object.assign(document.createElement(name), { className });
  node.append(...children);
  return node;
};

/** "2019-06" in words. */
export function monthName(month) {
  if (!month) return "Without a date";
  const [year, number] = month.split("-").map(Number);
  if (number < 1 || number > 12) return month;
  return new Date(Date.UTC(year, number - 1)).toLocaleDateString(undefined, { year: "numeric", month: "long", timeZone: "UTC" });
}

export class Timeline {
  /** fill(element, images): put tiles there; fail(error): pictures could not be had. */
  constructor({ fill, fail }) {
    this.fill = fill;
    this.fail = fail;
    this.sections = [];
    this.near = new Set();
    this.observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) this.near[isIntersecting ? "add" : "delete"](target);
      clearTimeout(this.settling);
      this.settling = setTimeout(() => this.near.forEach((rest) => this.#load(rest.parentElement)), this.began ? SETTLE_MS : 0);
    }, { rootMargin: NEAR });
    this.rail = element("rail");
    this.#wireRail();
    window.addEventListener("scroll", () => this.#mark(), { passive: true });
    new ResizeObserver(() => this.sections.length && this.#measure()).observe(element("grid"));
  }

  /** months: [{month, images}] in order, the undated as ""; load(month, after, limit): its pictures, {images, next}. */
  show(months, load) {
    this.hide();
    this.load = load;
    this.sections = months.map(({ month, images }) => {
      const rest = make("div", "rest");
      const title = make("h2", "section", monthName(month), make("span", "", ` ${images.toLocaleString()}`));
      const section = make("section", "month", title, make("div", "grid"), rest);
      section.setAttribute("aria-label", monthName(month));
      return Object.assign(section, { month, count: images, shown: [], busy: false });
    });
    element("grid").classList.add("by-month");
    element("grid").replaceChildren(...this.sections);
    this.rail.hidden = this.sections.length < 2;
    document.body.classList.toggle("has-rail", !this.rail.hidden);
    this.began = false;
    this.#measure();
    for (const { lastChild } of this.sections) this.observer.observe(lastChild);
  }

  hide() {
    this.observer.disconnect();
    this.near.clear();
    this.sections = [];
    this.jumped = undefined;
    this.rail.hidden = true;
    element("grid").classList.remove("by-month");
    document.body.classList.remove("has-rail");
  }

  /** Those that are on the page, in order. */
  shown() {
    return this.sections.flatMap(({ shown }) => shown);
  }

  /** Load what a section lacks as long as its end is near. */
  async #load(section) {
    if (section.busy) return;
    section.busy = true;
    this.began = true;
    try {
      while (this.near.has(section.lastChild) && section.shown.length < section.count) {
        await this.#page(section);
        if (!this.sections.includes(section)) return;
        await new Promise(requestAnimationFrame); // the observer sees where the end is now
      }
    } catch (error) {
      this.fail(error);
    } finally {
      section.busy = false;
    }
  }

  /** The next pictures of a section; who asks meanwhile gets the same ones. */
  #page(section) {
    const take = async () => {
      const { images, next } = await this.load(section.month, section.shown.at(-1)?.id ?? 0, PAGE);
      if (!this.sections.includes(section)) return;
      section.shown.push(...images);
      if (next === null) section.count = section.shown.length; // some may have gone meanwhile
      this.fill(section.children[1], images);
      this.#measure(section);
      if (section.shown.length >= section.count) this.observer.unobserve(section.lastChild);
    };
    section.paging ??= take().finally(() => (section.paging = null));
    return section.paging;
  }

  /** Load what lies around a picture: of its month, of the next, and all of the one before. */
  async extend(id) {
    const at = this.sections.findIndex(({ shown }) => shown.some((image) => image.id === id));
    if (at < 0) return;
    const here = this.sections[at];
    const place = here.shown.findIndex((image) => image.id === id);
    const isIn = (section) => this.sections.includes(section);
    const lacks = (section) => section && isIn(section) && section.shown.length < section.count;
    while (lacks(here) && here.shown.length < place + PAGE / 2) await this.#page(here);
    const [before, after] = [this.sections[at - 1], this.sections[at + 1]];
    if (lacks(after) && !after.shown.length && here.shown.length < place + PAGE / 2) await this.#page(after);
    while (place < PAGE / 2 && lacks(before)) await this.#page(before);
  }

  isWhole() {
    return this.sections.every(({ shown, count }) => shown.length >= count);
  }

  /** Give sections the height of the pictures that they still lack; then the rail its years. */
  #measure(...some) {
    const width = element("grid").clientWidth;
    this.rail.style.setProperty("--bar", `${document.querySelector(".bar").offsetHeight}px`);
    const row = matchMedia("(max-width: 720px)").matches ? 105 : 170;
    for (const section of some.length ? some : this.sections) {
      const lacks = Math.max(0, section.count - section.shown.length);
      const wanted = lacks * (row * USUAL_RATIO + GAP) + section.shown.reduce((sum, image) => sum + row * tileRatio(image) + GAP, 0);
      section.style.width = wanted < width ? `${Math.ceil(wanted)}px` : "100%"; // short months share a row
      const rows = lacks && Math.ceil((lacks * (row * USUAL_RATIO + GAP)) / width);
      section.lastChild.style.height = rows ? `${rows * (row * 1.1 + GAP)}px` : "";
    }
    cancelAnimationFrame(this.drawing);
    this.drawing = requestAnimationFrame(() => this.#drawRail());
  }

  // ---- the rail --------------------------------------------------------------------------------------------------

  #drawRail() {
    if (this.rail.hidden) return;
    const { height } = this.rail.getBoundingClientRect();
    let lowest = -LABEL_PX;
    let year = null;
    const labels = [];
    for (const section of this.sections) {
      const at = this.#share(section) * height;
      const text = section.month ? section.month.slice(0, 4) : "–";
      if (text === year || at - lowest < LABEL_PX || at > height - LABEL_PX) continue;
      const label = make("span", "year", text);
      label.style.top = `${at}px`;
      labels.push(label);
      [year, lowest] = [text, at];
    }
    element("rail-years").replaceChildren(...labels);
    this.rail.setAttribute("aria-valuemax", this.sections.length - 1);
    this.#mark();
  }

  #top = (section) => section.getBoundingClientRect().top + window.scrollY;

  /** How far down the timeline a section begins, 0 to 1. */
  #share(section) {
    const [first, last] = [this.sections[0], this.sections.at(-1)];
    const all = this.#top(last) + last.offsetHeight - this.#top(first);
    return (this.#top(section) - this.#top(first)) / Math.max(1, all);
  }

  /** Where the reader is. */
  #mark() {
    if (this.rail.hidden || !this.sections.length) return;
    const bar = document.querySelector(".bar").offsetHeight + 60;
    const tops = this.sections.map((section) => section.getBoundingClientRect().top);
    const here = Math.max(0, tops.findLastIndex((top) => top <= bar));
    const isAtEnd = window.scrollY > 0 && window.scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
    const isJumped = this.jumped !== undefined && (tops[this.jumped] === tops[here] || (isAtEnd && this.jumped > here));
    this.at = isJumped ? this.jumped : isAtEnd ? tops.length - 1 : tops.indexOf(tops[here]); // the first in its row
    const section = this.sections[this.at];
    const inside = Math.min(1, Math.max(0, (bar - section.getBoundingClientRect().top) / section.offsetHeight));
    const [from, to] = [this.#share(section), this.at + 1 < this.sections.length ? this.#share(this.sections[this.at + 1]) : 1];
    element("rail-mark").style.top = `${100 * (from + inside * (to - from))}%`;
    element("rail-mark").dataset.month = monthName(section.month);
    this.rail.setAttribute("aria-valuenow", this.at);
    this.rail.setAttribute("aria-valuetext", `${monthName(section.month)}, ${plural(section.count, "picture")}`);
  }

  jump(index) {
    this.jumped = Math.min(this.sections.length - 1, Math.max(0, index));
    const section = this.sections[this.jumped];
    window.scrollTo({ top: this.#top(section) - document.querySelector(".bar").offsetHeight - 8 });
    this.#mark();
  }

  #wireRail() {
    const follow = (event) => {
      const { top, height } = this.rail.getBoundingClientRect();
      const share = (event.clientY - top) / height;
      this.jump(this.sections.findLastIndex((section) => this.#share(section) <= share));
    };
    this.rail.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.rail.focus();
      this.rail.setPointerCapture(event.pointerId);
      this.rail.classList.add("held");
      follow(event);
    });
    this.rail.addEventListener("pointermove", (event) => this.rail.hasPointerCapture(event.pointerId) && follow(event));
    for (const end of ["pointerup", "pointercancel"]) this.rail.addEventListener(end, () => this.rail.classList.remove("held"));
    this.rail.addEventListener("keydown", (event) => {
      const to = { ArrowDown: this.at + 1, ArrowUp: this.at - 1, ArrowRight: this.at + 1, ArrowLeft: this.at - 1, PageDown: this.at + 6, PageUp: this.at - 6, Home: 0, End: this.sections.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.jump(to);
    });
  }
}
