// Several pictures at once: chosen one by one or from one to another, and taken away as a zip or a list.

const element = (id) => document.getElementById(id);
const MOST = 500; // what the service packs at once

export class Selection {
  /** room: the element whose tiles can be chosen. */
  constructor(room) {
    this.room = room;
    this.ids = new Set();
    this.last = null;
    this.isOn = false;
    room.addEventListener("click", (event) => this.#click(event), true); // before the tile opens
    element("select").addEventListener("click", () => this.set(!this.isOn));
    element("chosen-clear").addEventListener("click", () => this.set(false));
    room.addEventListener("keydown", (event) => event.key === "x" && !event.ctrlKey && !event.metaKey && this.#click(event, true));
    document.addEventListener("keydown", (event) => event.key === "Escape" && !document.querySelector("dialog[open]") && this.set(false));
  }

  /** Begin to choose, or stop and forget what was chosen. */
  set(isOn) {
    if (isOn === this.isOn) return;
    const holdsFocus = element("chosen").contains(document.activeElement);
    this.isOn = isOn;
    this.ids.clear();
    this.last = null;
    this.#show();
    if (holdsFocus) element("select").focus();
  }

  #click(event, asks = false) {
    const tile = event.target.closest(".tile");
    const asksFor = asks || event.ctrlKey || event.metaKey || event.shiftKey || event.target.classList.contains("check");
    if (!tile || !(this.isOn || asksFor)) return;
    event.stopPropagation();
    event.preventDefault();
    this.isOn = true;
    const tiles = [...this.room.querySelectorAll(".tile")];
    const from = event.shiftKey && this.last?.isConnected ? tiles.indexOf(this.last) : -1;
    const at = tiles.indexOf(tile);
    const isChosen = from >= 0 || !this.ids.has(tile.dataset.id);
    const touched = from < 0 ? [tile] : tiles.slice(Math.min(from, at), Math.max(from, at) + 1);
    for (const { dataset } of touched) this.ids[isChosen ? "add" : "delete"](dataset.id);
    this.last = tile;
    this.#show();
  }

  #show() {
    document.body.classList.toggle("selecting", this.isOn);
    element("select").setAttribute("aria-pressed", String(this.isOn));
    for (const tile of this.room.querySelectorAll(".tile")) {
      if (this.isOn) tile.setAttribute("aria-pressed", String(this.ids.has(tile.dataset.id)));
      else tile.removeAttribute("aria-pressed");
    }
    const count = this.ids.size;
    element("chosen").hidden = !this.isOn;
    element("chosen-count").textContent = !count ? "Choose pictures" : count > MOST ? `${count.toLocaleString()} chosen: at most ${MOST} at once` : `${count} chosen`;
    for (const form of element("chosen").querySelectorAll("form")) {
      form.elements.ids.value = [...this.ids].join(",");
      form.querySelector("button").disabled = count === 0 || count > MOST;
    }
  }
}
