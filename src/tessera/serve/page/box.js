// A box drawn on the query picture: draw, move, resize, by pointer or keyboard. Coordinates are fractions of the picture.

const EDGES = ["nw", "n", "ne", "e", "se", "s", "sw", "w"];
const SMALLEST = 0.02;
const STEP = 0.02;
const SLACK_PX = 4; // a click's or a tap's own trembling

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

export class BoxEditor {
  /** onChange(box | null, settled): settled is false while a drag goes on. */
  constructor(stage, element, onChange) {
    this.stage = stage;
    this.element = element;
    this.onChange = onChange;
    this.box = null;
    for (const edge of EDGES) {
      const handle = document.createElement("span");
      handle.className = "handle";
      handle.dataset.edge = edge;
      element.append(handle);
    }
    stage.addEventListener("pointerdown", (event) => this.#start(event));
    element.addEventListener("keydown", (event) => this.#key(event));
  }

  set(box) {
    this.box = box;
    this.element.hidden = !box;
    if (!box) return;
    const [x0, y0, x1, y1] = box;
    Object.assign(this.element.style, {
      left: `${x0 * 100}%`, top: `${y0 * 100}%`, width: `${(x1 - x0) * 100}%`, height: `${(y1 - y0) * 100}%`,
    });
  }

  /** A box around a place, to begin with; a tap says no more. */
  propose([x, y]) {
    this.#change(shift([0.25, 0.25, 0.75, 0.75], x - 0.5, y - 0.5), true);
  }

  clear() {
    this.#change(null, true);
  }

  #change(box, settled) {
    this.set(box);
    this.onChange(box, settled);
  }

  #at(event) {
    const frame = this.stage.getBoundingClientRect();
    return [
      clamp((event.clientX - frame.left) / frame.width, 0, 1),
      clamp((event.clientY - frame.top) / frame.height, 0, 1),
    ];
  }

  #start(event) {
    if (event.button !== 0 || this.stage.classList.contains("blank")) return;
    event.preventDefault();
    const [startX, startY] = this.#at(event);
    const edge = event.target.dataset?.edge;
    const moving = !edge && event.target === this.element;
    const before = this.box;
    let moved = false;
    this.stage.setPointerCapture(event.pointerId);

    const follow = (move) => {
      const [x, y] = this.#at(move);
      moved ||= Math.hypot(move.clientX - event.clientX, move.clientY - event.clientY) > SLACK_PX;
      if (!moved) return;
      if (moving) {
        this.#change(shift(before, x - startX, y - startY), false);
        return;
      }
      if (edge) {
        this.#change(pull(before, edge, x, y), false);
        return;
      }
      const drawn = [Math.min(startX, x), Math.min(startY, y), Math.max(startX, x), Math.max(startY, y)];
      if (drawn[2] - drawn[0] > SMALLEST && drawn[3] - drawn[1] > SMALLEST) this.#change(drawn, false);
    };
    const stop = ({ type }) => {
      this.stage.removeEventListener("pointermove", follow);
      this.stage.removeEventListener("pointerup", stop);
      this.stage.removeEventListener("pointercancel", stop);
      // A finger that turns out to scroll the page leaves the box as it was.
      const cancelled = type === "pointercancel";
      if (this.box !== before) {
        this.#change(cancelled ? before : this.box, true);
        if (!cancelled) this.element.focus({ preventScroll: true });
      } else if (!cancelled && !moved && !before && event.pointerType === "touch") {
        this.propose([startX, startY]);
      }
    };
    this.stage.addEventListener("pointermove", follow);
    this.stage.addEventListener("pointerup", stop);
    this.stage.addEventListener("pointercancel", stop);
  }

  #key(event) {
    const [dx, dy] = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] }[event.key] ?? [];
    if (dx !== undefined) {
      event.preventDefault();
      const [, , x1, y1] = this.box;
      this.#change(event.shiftKey ? pull(this.box, "se", clamp(x1 + dx, 0, 1), clamp(y1 + dy, 0, 1)) : shift(this.box, dx, dy), true);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      event.preventDefault();
      this.#change(null, true);
    }
  }
}

function shift([x0, y0, x1, y1], dx, dy) {
  dx = clamp(dx, -x0, 1 - x1);
  dy = clamp(dy, -y0, 1 - y1);
  return [x0 + dx, y0 + dy, x1 + dx, y1 + dy];
}

function pull([x0, y0, x1, y1], edge, x, y) {
  if (edge.includes("w")) x0 = Math.min(x, x1 - SMALLEST);
  if (edge.includes("e")) x1 = Math.max(x, x0 + SMALLEST);
  if (edge.includes("n")) y0 = Math.min(y, y1 - SMALLEST);
  if (edge.includes("s")) y1 = Math.max(y, y0 + SMALLEST);
  return [x0, y0, x1, y1];
}
