// The pad: lines that are drawn with a pointer or with the keyboard, or an image, as pixels for the network.

const OVERSAMPLING = 8; // dots per pixel along each side, before they are averaged
const PEN_STEP = { coarse: 0.05, fine: 0.01 }; // of an arrow key, relative to the width of the pad; fine with Shift
const USUAL = 0.6; // larger side of a usual drawing, relative to the width of the pad, for the width of its lines
const SHORTEST = 0.02; // a drawing that is smaller, relative to the width of the pad, is a dot and is not enlarged

class Pad {
  // style: how drawings should look, see `drawing.py`; null if the pad shows images only. changed: called after a change.
  constructor(canvas, shape, style, changed) {
    Object.assign(this, { canvas, shape, style, changed, lines: [], image: null, about: null, penDown: false, keyboard: false });
    this.place = [0.5, 0.5]; // of the pen that arrow keys move
    const [, height, width] = shape;
    this.aspect = height / width;
    canvas.width = 560;
    canvas.height = Math.round(560 * this.aspect);
    this.context = canvas.getContext("2d");
    if (style) this.listen();
    this.show();
  }

  get empty() {
    return this.image === null && this.lines.length === 0;
  }

  clear() {
    this.setImage(null);
  }

  undo() {
    this.lines.pop();
    Object.assign(this, { image: null, about: null, penDown: false });
    this.update();
  }

  // Show an image of the network's size in place of a drawing, and keep a sentence about it. Pixels are bytes, (channels,
  // height, width).
  setImage(pixels, about = null) {
    Object.assign(this, { lines: [], image: pixels, about, penDown: false });
    this.update();
  }

  update() {
    this.show();
    this.changed();
  }

  begin(point) {
    this.image = this.about = null;
    this.lines.push([point]);
    this.update();
  }

  extend(points) {
    if (!this.lines.length) return; // cleared while the pen was down
    this.lines[this.lines.length - 1].push(...points);
    this.update();
  }

  listen() {
    const { canvas } = this;
    const point = ({ clientX, clientY }) => {
      const { left, top, width } = canvas.getBoundingClientRect();
      return [(clientX - left) / width, (clientY - top) / width];
    };
    let pointer = null; // the one that draws
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || pointer !== null) return;
      pointer = event.pointerId;
      this.keyboard = this.penDown = false;
      try {
        canvas.setPointerCapture(pointer);
      } catch {
        // A pointer that has gone already cannot be captured, and draws a dot.
      }
      this.begin(point(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerId !== pointer) return;
      const several = event.getCoalescedEvents?.() ?? [];
      this.extend((several.length ? several : [event]).map(point));
    });
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, (event) => {
        if (event.pointerId === pointer) pointer = null;
      });
    }
    canvas.addEventListener("keydown", (event) => this.press(event));
    for (const change of ["focus", "blur"]) canvas.addEventListener(change, () => this.show());
  }

  press(event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.altKey || event.metaKey || (event.ctrlKey && event.key !== "z")) return;
    this.keyboard = true;
    if (move) {
      const step = event.shiftKey ? PEN_STEP.fine : PEN_STEP.coarse, limits = [1, this.aspect];
      this.place = this.place.map((at, axis) => Math.min(Math.max(at + move[axis] * step, 0), limits[axis]));
      if (this.penDown) this.extend([this.place]);
      else this.show();
    } else if (event.key === " ") {
      this.penDown = !this.penDown;
      if (this.penDown) this.begin(this.place);
      else this.show();
    } else if (event.key === "Delete" || event.key === "Backspace") this.clear();
    else if (event.ctrlKey) this.undo();
    else return;
    event.preventDefault();
  }

  // Draw the lines, moved by `shift` and multiplied by `scale`.
  trace(context, colour, pen, scale, shift) {
    Object.assign(context, { strokeStyle: colour, lineWidth: pen, lineCap: "round", lineJoin: "round" });
    const at = (point) => point.map((value, axis) => value * scale + shift[axis]);
    for (const line of this.lines) {
      context.beginPath();
      const [x, y] = at(line[0]);
      context.moveTo(x, y);
      context.lineTo(x + 0.01, y); // a line without length would not be drawn
      for (const point of line) context.lineTo(...at(point));
      context.stroke();
    }
  }

  show() {
    const { context, canvas, style, keyboard, image } = this;
    if (image !== null) {
      paint(canvas, image, this.shape);
      return;
    }
    context.fillStyle = grey(style?.background ?? 0);
    context.fillRect(0, 0, canvas.width, canvas.height);
    if (!style) return;
    const pen = (style.pen / style.side) * USUAL * canvas.width;
    this.trace(context, grey(style.ink), pen, canvas.width, [0, 0]);
    if (!keyboard || document.activeElement !== canvas) return;
    Object.assign(context, { strokeStyle: "#e8590c", fillStyle: "#e8590c", lineWidth: 4 });
    context.beginPath();
    context.arc(...this.place.map((value) => value * canvas.width), Math.max(pen / 2, 8), 0, 7);
    if (this.penDown) context.fill();
    else context.stroke();
  }

  // The input of the network, or null: the image, or the drawing in the size and at the place of the training images.
  pixels() {
    if (this.image !== null || this.empty) return this.image;
    const { style, shape: [, height, width] } = this, points = this.lines.flat();
    const ends = (end) => [0, 1].map((axis) => points.reduce((found, point) => end(found, point[axis]), points[0][axis]));
    const first = ends(Math.min), last = ends(Math.max);
    const longest = Math.max(last[0] - first[0], last[1] - first[1]);
    const scale = longest < SHORTEST ? width : Math.max(style.side - style.pen, 1) / longest;
    const centre = [style.centre[1], style.centre[0]];
    const middle = first.map((value, axis) => ((value + last[axis]) / 2) * scale);
    let shift = centre.map((value, axis) => value - middle[axis]);
    let ink = this.raster(scale, shift);
    if (style.by_mass) {
      const mass = centreOfMass(ink, width, height);
      shift = shift.map((value, axis) => value + centre[axis] - mass[axis]);
      ink = this.raster(scale, shift);
    }
    return Uint8Array.from(ink, (share) => Math.round(style.background + share * (style.ink - style.background)));
  }

  // The share of each pixel that is covered by lines. → (height · width)
  raster(scale, shift) {
    const [, height, width] = this.shape, wide = width * OVERSAMPLING;
    const context = scratch(wide, height * OVERSAMPLING);
    const dotted = shift.map((value) => value * OVERSAMPLING);
    this.trace(context, "#fff", this.style.pen * OVERSAMPLING, scale * OVERSAMPLING, dotted);
    const dots = context.getImageData(0, 0, wide, height * OVERSAMPLING).data, found = new Float64Array(width * height);
    for (let i = 0; i < dots.length / 4; i++) {
      const x = Math.floor((i % wide) / OVERSAMPLING), y = Math.floor(i / wide / OVERSAMPLING);
      found[y * width + x] += dots[4 * i + 3] / (255 * OVERSAMPLING ** 2);
    }
    return found;
  }
}

const grey = (value) => `rgb(${value} ${value} ${value})`;

function scratch(width, height) {
  return Object.assign(document.createElement("canvas"), { width, height }).getContext("2d", { willReadFrequently: true });
}

function centreOfMass(ink, width, height) {
  let total = 0, x = 0, y = 0;
  ink.forEach((share, i) => {
    total += share;
    x += share * ((i % width) + 0.5);
    y += share * (Math.floor(i / width) + 0.5);
  });
  return total ? [x / total, y / total] : [width / 2, height / 2];
}

// Paint pixels, (channels, height, width), onto a canvas of any size.
function paint(canvas, pixels, [channels, height, width]) {
  const small = scratch(width, height), picture = small.createImageData(width, height), size = width * height;
  for (let i = 0; i < size; i++) {
    for (let c = 0; c < 3; c++) picture.data[4 * i + c] = pixels[(c % channels) * size + i];
    picture.data[4 * i + 3] = 255;
  }
  small.putImageData(picture, 0, 0);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small.canvas, 0, 0, canvas.width, canvas.height);
}

// Read an image file as pixels of the network's size; transparent pixels are shown on white. A grey image is inverted if its
// border is closer to the ink of the training images than to their background. → { pixels, inverted }
async function readImage(file, shape, style) {
  const [channels, height, width] = shape, picture = await createImageBitmap(file), context = scratch(width, height);
  Object.assign(context, { fillStyle: "#fff", imageSmoothingQuality: "high" });
  context.fillRect(0, 0, width, height);
  context.drawImage(picture, 0, 0, width, height);
  const dots = context.getImageData(0, 0, width, height).data, size = width * height;
  const colour = (c, i) => dots[4 * i + c];
  if (channels === 3) {
    const pixels = Uint8Array.from({ length: 3 * size }, (_, i) => colour(Math.floor(i / size), i % size));
    return { pixels, inverted: false };
  }
  const light = (i) => Math.round(0.299 * colour(0, i) + 0.587 * colour(1, i) + 0.114 * colour(2, i));
  const pixels = Uint8Array.from({ length: size }, (_, i) => light(i));
  const isBorder = (i) => i < width || i >= size - width || i % width === 0 || i % width === width - 1;
  const border = pixels.filter((_, i) => isBorder(i)), mean = border.reduce((a, b) => a + b, 0) / border.length;
  const inverted = Math.abs(mean - style.ink) < Math.abs(mean - style.background);
  return { pixels: inverted ? pixels.map((value) => 255 - value) : pixels, inverted };
}
