// The visible part of the picture, and its scale.

const MARGIN = 6; // pixels around a picture that fits
const CLOSEST = 4; // maximum scale
const LARGEST = 1.3; // scale above which a whole picture gains nothing
const OPENS = 0.6; // minimum scale at which a picture opens: the names of ops can be read
const LEAST = 0.14; // minimum scale: the name of a segment fits into its box, which is at least 220 by 98 pixels
const DRAG = 4; // pixels that distinguish a drag from a click

export class Viewport {
  /** `moved()` is called after each change of the visible part; below the scale `readable` there are no words, so only a
   *  whole picture is smaller. */
  constructor(canvas, moved, readable = LEAST) {
    this.canvas = canvas;
    this.moved = moved;
    this.readable = readable;
    this.fitted = true;
    this.dragged = false;
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
  }

  /** The scale at which the picture is shown. */
  get scale() {
    return this.room.w / this.box.w;
  }

  /** Show another picture; `fit` or `hold` decides its position. `start` is where it begins, from the left. */
  look(svg, [w, h], start = w / 2) {
    this.svg = svg;
    this.size = { w, h };
    this.start = start;
  }

  /** Show the whole picture as large as possible, or where its names could not be read, its start. */
  home() {
    this.fit(OPENS);
  }

  /** Show the whole picture as large as possible, or at the least scale its start. */
  fit(least = LEAST) {
    if (!this.svg || !this.room?.w) return;
    const { whole, room: { w, h } } = this;
    const scale = Math.max(whole, least);
    this.box = { w: w / scale, h: h / scale };
    const spare = this.size.w - this.box.w;
    this.box.x = spare > 0 ? Math.min(Math.max(this.start - this.box.w / 2, 0), spare) : spare / 2;
    this.box.y = Math.min((this.size.h - this.box.h) / 2, -MARGIN / scale);
    Object.assign(this, { least, fitted: whole >= least });
    this.apply();
  }

  /** The scale at which the whole picture is seen, as large as possible. */
  get whole() {
    return Math.min((this.room.w - 2 * MARGIN) / this.size.w, (this.room.h - 2 * MARGIN) / this.size.h, LARGEST);
  }

  zoom(factor, at) {
    if (!this.box) return;
    const least = Math.max(Math.min(this.readable, this.whole), LEAST);
    const centre = at || { x: this.box.x + this.box.w / 2, y: this.box.y + this.box.h / 2 };
    const scale = Math.min(Math.max(1 / factor, this.room.w / CLOSEST / this.box.w), this.room.w / least / this.box.w);
    this.box.x = centre.x + (this.box.x - centre.x) * scale;
    this.box.y = centre.y + (this.box.y - centre.y) * scale;
    this.box.w *= scale;
    this.box.h *= scale;
    this.fitted = false;
    this.apply();
  }

  /** Keep the picture's position and scale when the canvas changes its size. */
  resize({ width, height }) {
    const before = this.room;
    this.room = { w: width, h: height }; // asking the browser would make it lay out everything
    if (!this.svg || !width || !height) return false;
    if (!this.box) this.home();
    else if (this.fitted) this.fit(this.least);
    else {
      this.box.w *= width / before.w;
      this.box.h = (this.box.w * height) / width;
      this.apply();
    }
    return true;
  }

  /** Move the picture so that an item that moved within it stays where it is on the screen. */
  hold(old, now) {
    if (!this.box || !now) return false;
    this.box.x += now.x - old.x;
    this.box.y += now.y - old.y;
    this.apply();
    return true;
  }

  centre(at) {
    Object.assign(this.box, { x: at.x - this.box.w / 2, y: at.y - this.box.h / 2 });
    this.fitted = false;
    this.apply();
  }

  /** Whether a position is visible; before the canvas has a size, the picture is at its start. */
  shows(at) {
    if (!this.box) return true;
    const { x, y, w, h } = this.box;
    return this.fitted || (at.x > x + 30 && at.x < x + w - 30 && at.y > y + 30 && at.y < y + h - 30);
  }

  /** Move the picture so that a position is visible. */
  reveal(at) {
    if (this.box && at && !this.shows(at)) this.centre(at);
  }

  /** Show a position at a scale. */
  approach(at, scale) {
    if (!this.box) return;
    Object.assign(this.box, { w: this.room.w / scale, h: this.room.h / scale });
    this.centre(at);
  }

  apply() {
    // The picture is moved and scaled as a whole, because another viewBox would lay out all text again.
    this.svg.style.transform = `scale(${this.scale}) translate(${-this.box.x}px, ${-this.box.y}px)`;
    this.moved();
  }

  onDown(event) {
    if (event.button !== 0 || !this.svg) return;
    const start = { x: event.clientX, y: event.clientY, box: { ...this.box } };
    this.dragged = false;
    const move = (e) => {
      const [dx, dy] = [e.clientX - start.x, e.clientY - start.y];
      if (!this.dragged && Math.hypot(dx, dy) < DRAG) return;
      this.dragged = true;
      this.fitted = false;
      this.canvas.classList.add("fx-dragging");
      this.box.x = start.box.x - dx / this.scale;
      this.box.y = start.box.y - dy / this.scale;
      this.apply();
    };
    const up = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
      this.canvas.classList.remove("fx-dragging");
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
  }

  onWheel(event) {
    // A plain wheel scrolls the notebook; with Ctrl, or with a pinch on a touchpad, it zooms.
    if (!(event.ctrlKey || event.metaKey) || !this.svg) return;
    event.preventDefault();
    const frame = this.canvas.getBoundingClientRect();
    const at = {
      x: this.box.x + ((event.clientX - frame.left) / frame.width) * this.box.w,
      y: this.box.y + ((event.clientY - frame.top) / frame.height) * this.box.h,
    };
    this.zoom(Math.exp(-event.deltaY / 300), at);
  }
}
