// A room that shows one picture, fitted or enlarged: by wheel, two fingers, a double tap, or keys. A swipe leads on.

const MOST = 8; // times its own pixels
const SWIPE_PX = 60;
const DOUBLE_MS = 300;
const STEP_PX = 80;

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

export class ZoomRoom {
  /** step(by): to the next picture; leave(): away from it; changed(isZoomed). */
  constructor(room, { step, leave, changed }) {
    Object.assign(this, { room, step, leave, changed, fingers: new Map(), picture: null });
    room.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    room.addEventListener("pointerdown", (event) => this.#down(event));
    room.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel"]) room.addEventListener(end, (event) => this.#up(event));
    room.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.picture && this.fit()).observe(room);
  }

  /** Another picture; gives its element. The preview stands in until it has come. */
  show({ source, preview, width, height, name }) {
    const picture = Object.assign(new Image(), { id: "large-picture", alt: name, draggable: false });
    picture.style.backgroundImage = `url("${preview}")`;
    picture.src = source;
    this.own = [width || 1, height || 1];
    if (this.picture) this.picture.replaceWith(picture);
    else this.room.prepend(picture);
    this.picture = picture;
    this.fit();
    return picture;
  }

  empty() {
    this.picture?.remove();
    this.picture = null;
    this.fingers.clear();
  }

  /** As large as there is room for, small ones at most twice their size. */
  fit() {
    const [width, height] = this.own;
    const fitted = Math.min(this.room.clientWidth / width, this.room.clientHeight / height, 2);
    this.size = [width * fitted, height * fitted];
    Object.assign(this.picture.style, { width: `${this.size[0]}px`, height: `${this.size[1]}px` });
    this.most = Math.max(3, MOST / fitted);
    this.full = Math.max(2, 1 / fitted); // its own pixels
    this.#set(1, 0, 0);
  }

  get isZoomed() {
    return this.scale > 1.001;
  }

  toggle(event) {
    if (this.isZoomed) this.#set(1, 0, 0);
    else this.zoomBy(this.full, event);
  }

  /** Around the place of the event, or the middle. */
  zoomBy(factor, event) {
    const { left, top, width, height } = this.room.getBoundingClientRect();
    const [x, y] = event ? [event.clientX - left - width / 2, event.clientY - top - height / 2] : [0, 0];
    const scale = clamp(this.scale * factor, 1, this.most);
    const by = scale / this.scale;
    this.#set(scale, x - by * (x - this.x), y - by * (y - this.y));
  }

  /** No further than the picture's edges. */
  #set(scale, x, y) {
    const [reachX, reachY] = [this.room.clientWidth, this.room.clientHeight].map((room, axis) => Math.max(0, (this.size[axis] * scale - room) / 2));
    this.scale = scale;
    this.x = clamp(x, -reachX, reachX);
    this.y = clamp(y, -reachY, reachY);
    this.picture.style.transform = `translate(${this.x}px, ${this.y}px) scale(${scale})`;
    this.room.classList.toggle("zoomed", this.isZoomed);
    this.changed(this.isZoomed);
  }

  #wheel(event) {
    if (!this.picture) return;
    event.preventDefault();
    this.zoomBy(Math.exp(-clamp(event.deltaY, -120, 120) / 300), event);
  }

  #down(event) {
    if (!this.picture || event.button !== 0 || event.target.closest("button")) return;
    this.fingers.set(event.pointerId, event);
    this.room.setPointerCapture(event.pointerId);
    this.began = this.fingers.size === 1 ? { x: event.clientX, y: event.clientY, isZoomed: this.isZoomed } : null; // two fingers are no swipe
  }

  #move(event) {
    const before = this.fingers.get(event.pointerId);
    if (!before || !this.picture) return;
    const others = [...this.fingers.values()].filter(({ pointerId }) => pointerId !== event.pointerId);
    this.fingers.set(event.pointerId, event);
    if (others.length) {
      const apart = (one) => Math.max(20, Math.hypot(one.clientX - others[0].clientX, one.clientY - others[0].clientY));
      const middle = { clientX: (event.clientX + others[0].clientX) / 2, clientY: (event.clientY + others[0].clientY) / 2 };
      this.zoomBy(apart(event) / apart(before), middle);
    } else if (this.isZoomed) {
      this.#set(this.scale, this.x + event.clientX - before.clientX, this.y + event.clientY - before.clientY);
    }
  }

  #up(event) {
    if (!this.fingers.delete(event.pointerId) || event.type === "pointercancel" || !this.began) return;
    const [dx, dy] = [event.clientX - this.began.x, event.clientY - this.began.y];
    const { isZoomed } = this.began;
    this.began = null;
    if (Math.hypot(dx, dy) < 8) return this.#tap(event);
    if (isZoomed || event.pointerType === "mouse") return;
    if (Math.abs(dx) > SWIPE_PX && Math.abs(dx) > 1.5 * Math.abs(dy)) this.step(dx < 0 ? 1 : -1);
    else if (dy > 1.5 * SWIPE_PX && dy > 1.5 * Math.abs(dx)) this.leave();
  }

  /** A click on the picture enlarges it, and a second tap of a finger; a click beside it leaves. */
  #tap(event) {
    const { left, right, top, bottom } = this.picture.getBoundingClientRect();
    const isOnIt = event.clientX >= left && event.clientX <= right && event.clientY >= top && event.clientY <= bottom;
    if (event.pointerType === "mouse") return isOnIt ? this.toggle(event) : this.leave();
    const isSecond = event.timeStamp - (this.tapped ?? -Infinity) < DOUBLE_MS;
    this.tapped = isSecond ? undefined : event.timeStamp;
    if (isSecond) this.toggle(event);
  }

  #key(event) {
    const [dx, dy] = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key] ?? [0, 0];
    if (!this.isZoomed || !(dx || dy) || (dx && !event.shiftKey)) return;
    event.preventDefault();
    this.#set(this.scale, this.x + dx * STEP_PX, this.y + dy * STEP_PX);
  }
}
