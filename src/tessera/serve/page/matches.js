// The places that two pictures share, as lines from one to the other.

const SVG = "http://www.w3.org/2000/svg";

/** Neighbours in the query get similar colours, so that a match in the wrong place stands out. As explain/matches.py. */
const colour = (x, y) => `rgb(${Math.round(255 * x)} ${Math.round(90 + 165 * (1 - y))} 160)`;

export class MatchLines {
  /** pair: what holds both pictures, left and right. */
  constructor(pair, left, right) {
    this.pair = pair;
    this.sides = [left, right];
    this.points = [];
    this.drawing = document.createElementNS(SVG, "svg");
    this.drawing.setAttribute("class", "lines");
    this.drawing.setAttribute("aria-hidden", "true"); // the note says how many there are
    pair.append(this.drawing);
    const follow = new ResizeObserver(() => this.#draw());
    for (const element of [pair, left, right]) follow.observe(element);
  }

  show(points) {
    this.points = points;
    this.#draw();
  }

  #draw() {
    const origin = this.pair.getBoundingClientRect();
    const frames = this.sides.map((side) => side.getBoundingClientRect());
    const at = (side, x, y) => [frames[side].left - origin.left + x * frames[side].width, frames[side].top - origin.top + y * frames[side].height];
    this.drawing.replaceChildren(...this.points.flatMap(([x, y, u, v]) => {
      const [start, end] = [at(0, x, y), at(1, u, v)];
      const paint = colour(x, y);
      return [
        shape("line", { x1: start[0], y1: start[1], x2: end[0], y2: end[1], stroke: paint }),
        ...[start, end].map(([cx, cy]) => shape("circle", { cx, cy, r: 3.5, fill: paint })),
      ];
    }));
  }
}

function shape(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}
