"use strict";
// The network: the operations that `graph.py` lists, on tensors { values: Float32Array, shape }. Maps are (channels, height,
// width), vectors (values). Sums are in double precision.

// Multiply rows by a matrix. (count, inputs), (outputs, inputs) → (outputs, count). Four outputs and two rows are computed
// at a time, so that each value is read less often; at the end of the matrix, some of them are the same.
function product(weight, outputs, inputs, rows, count) {
  const found = new Float32Array(outputs * count);
  for (let o = 0; o < outputs; o += 4) {
    const [o1, o2, o3] = [1, 2, 3].map((step) => Math.min(o + step, outputs - 1));
    const w0 = o * inputs, w1 = o1 * inputs, w2 = o2 * inputs, w3 = o3 * inputs;
    for (let r = 0; r < count; r += 2) {
      const s = Math.min(r + 1, count - 1), first = r * inputs, second = s * inputs;
      let r0 = 0, r1 = 0, r2 = 0, r3 = 0, s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      for (let i = 0; i < inputs; i++) {
        const a = rows[first + i], b = rows[second + i];
        const x0 = weight[w0 + i], x1 = weight[w1 + i], x2 = weight[w2 + i], x3 = weight[w3 + i];
        r0 += x0 * a;
        r1 += x1 * a;
        r2 += x2 * a;
        r3 += x3 * a;
        s0 += x0 * b;
        s1 += x1 * b;
        s2 += x2 * b;
        s3 += x3 * b;
      }
      found[o * count + r] = r0;
      found[o1 * count + r] = r1;
      found[o2 * count + r] = r2;
      found[o3 * count + r] = r3;
      found[o * count + s] = s0;
      found[o1 * count + s] = s1;
      found[o2 * count + s] = s2;
      found[o3 * count + s] = s3;
    }
  }
  return found;
}

// The 3×3 neighbourhood of every pixel, zero outside. (c, h, w) → (h · w, c · 9)
function neighbourhoods({ values, shape: [channels, height, width] }) {
  const size = channels * 9, found = new Float32Array(height * width * size);
  for (let y = 0, place = 0; y < height; y++) {
    for (let x = 0; x < width; x++, place += size) {
      for (let c = 0, to = place; c < channels; c++, to += 9) {
        for (let dy = -1; dy <= 1; dy++) {
          if (y + dy < 0 || y + dy >= height) continue;
          const from = (c * height + y + dy) * width + x, row = to + 3 * dy + 4;
          if (x > 0) found[row - 1] = values[from - 1];
          found[row] = values[from];
          if (x + 1 < width) found[row + 1] = values[from + 1];
        }
      }
    }
  }
  return found;
}

// Apply a function to blocks of a map's pixels. `rows` and `columns` list [first, last + 1] of each block.
function pooled({ values, shape: [channels, height, width] }, rows, columns, reduce) {
  const found = new Float32Array(channels * rows.length * columns.length);
  let place = 0;
  for (let c = 0; c < channels; c++) {
    for (const [top, bottom] of rows) {
      for (const [left, right] of columns) {
        found[place++] = reduce(values, c * height * width, width, top, bottom, left, right);
      }
    }
  }
  return { values: found, shape: [channels, rows.length, columns.length] };
}

function largest(values, first, width, top, bottom, left, right) {
  let found = -Infinity;
  for (let y = top; y < bottom; y++) {
    for (let x = left; x < right; x++) found = Math.max(found, values[first + y * width + x]);
  }
  return found;
}

function average(values, first, width, top, bottom, left, right) {
  let sum = 0;
  for (let y = top; y < bottom; y++) {
    for (let x = left; x < right; x++) sum += values[first + y * width + x];
  }
  return sum / ((bottom - top) * (right - left));
}

const pairs = (length) => Array.from({ length: Math.floor(length / 2) }, (_, i) => [2 * i, 2 * i + 2]);
const parts = (length, count) => // they overlap if the length is no multiple of the count
  Array.from({ length: count }, (_, i) => [Math.floor((i * length) / count), Math.ceil(((i + 1) * length) / count)]);

const sum = (values, of) => values.reduce((total, value) => total + of(value), 0);

// (what the operation before returned, arguments, function that returns a tensor by its number, list of kept tensors)
const OPERATIONS = {
  linear({ values }, { weight, bias }, at) {
    const { values: matrix, shape: [outputs, inputs] } = at(weight);
    const found = product(matrix, outputs, inputs, values, 1);
    if (bias !== null) at(bias).values.forEach((value, i) => (found[i] += value));
    return { values: found, shape: [outputs] };
  },
  convolution(maps, { weight }, at) {
    const [, height, width] = maps.shape, { values: matrix, shape: [outputs, inputs] } = at(weight);
    const values = product(matrix, outputs, inputs * 9, neighbourhoods(maps), height * width);
    return { values, shape: [outputs, height, width] };
  },
  affine({ values, shape }, { gain, offset }, at) {
    const found = new Float32Array(values.length), size = values.length / shape[0];
    for (let c = 0; c < shape[0]; c++) {
      const factor = at(gain).values[c], added = at(offset).values[c];
      for (let i = c * size; i < (c + 1) * size; i++) found[i] = values[i] * factor + added;
    }
    return { values: found, shape };
  },
  relu: ({ values, shape }) => ({ values: values.map((value) => (value > 0 ? value : 0)), shape }),
  layer_norm({ values, shape }, { epsilon }) {
    const mean = sum(values, (value) => value) / values.length;
    const variance = sum(values, (value) => (value - mean) ** 2) / values.length;
    const factor = 1 / Math.sqrt(variance + epsilon);
    return { values: values.map((value) => (value - mean) * factor), shape };
  },
  max_pool: (maps) => pooled(maps, pairs(maps.shape[1]), pairs(maps.shape[2]), largest),
  average_pool: (maps, { side }) => pooled(maps, parts(maps.shape[1], side[0]), parts(maps.shape[2], side[1]), average),
  pixel_mean(maps) {
    const { values, shape } = pooled(maps, [[0, maps.shape[1]]], [[0, maps.shape[2]]], average);
    return { values, shape: [shape[0]] };
  },
  normalise({ values, shape }, { gain }) {
    const factor = gain / Math.max(Math.sqrt(sum(values, (value) => value * value)), 1e-12);
    return { values: values.map((value) => value * factor), shape };
  },
  keep(tensor, _, __, kept) {
    kept.push(tensor);
    return tensor;
  },
  add_kept({ values, shape }, _, __, kept) {
    const other = kept.pop().values;
    return { values: values.map((value, i) => value + other[i]), shape };
  },
};

// A trained FAUST model. Distances, scores and early exit are those of `faustnet.methods.faust.Faust`.
class Model {
  constructor(facts, bytes) {
    const all = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
    const tensors = facts.tensors.map(({ first, shape }) => {
      return { values: all.subarray(first, first + shape.reduce((a, b) => a * b, 1)), shape };
    });
    this.at = (number) => tensors[number];
    Object.assign(this, facts.model);
    this.trained = facts.classes.length;
    this.classes = facts.classes.slice();
    // by layer and class: the references, one after the other
    this.references = this.layers.map(({ references }) => {
      const { values, shape: [classes, count, size] } = this.at(references);
      return Array.from({ length: classes }, (_, c) => values.subarray(c * count * size, (c + 1) * count * size));
    });
  }

  // The embedding of one image in each layer. Pixels are bytes, (channels, height, width).
  embeddings(pixels, mirrored = false) {
    const [channels, height, width] = this.shape, size = height * width;
    const values = new Float32Array(channels * size);
    for (let i = 0; i < values.length; i++) {
      const c = Math.floor(i / size), from = mirrored ? i - (i % width) + width - 1 - (i % width) : i;
      values[i] = (pixels[from] - this.mean[c]) / this.deviation[c];
    }
    let passed = { values, shape: this.shape };
    return this.layers.map(({ body, head, passes_embedding }) => {
      passed = this.compute(body, passed);
      const embedding = this.compute(head, passed);
      if (passes_embedding) passed = embedding;
      return embedding.values;
    });
  }

  compute(operations, tensor) {
    const kept = [];
    return operations.reduce((found, operation) => OPERATIONS[operation.do](found, operation, this.at, kept), tensor);
  }

  // The squared distance of an embedding to each reference of one class.
  squares(embedding, references) {
    const size = embedding.length, found = new Float64Array(references.length / size);
    for (let i = 0; i < references.length; i++) found[Math.floor(i / size)] += (embedding[i % size] - references[i]) ** 2;
    return found;
  }

  // −log(mean(exp(−scale · d))) / scale, between the smallest and the mean of the squared distances.
  softMinimum(squares) {
    if (squares.length === 1) return squares[0];
    const least = Math.min(...squares);
    return least - Math.log(sum(squares, (d) => Math.exp(this.scale * (least - d))) / squares.length) / this.scale;
  }

  // For each layer the distance to every class, and the nearest reference of each class.
  distances(pixels, mirrored) {
    return this.embeddings(pixels, mirrored).map((embedding, layer) => {
      const squares = this.references[layer].map((own) => this.squares(embedding, own));
      const distances = squares.map((own) => Math.sqrt(Math.max(this.softMinimum(own), 0)));
      return { distances, nearest: squares.map((own) => own.indexOf(Math.min(...own))) };
    });
  }

  // What each layer answers alone, what the layers so far answer together, and by how much the best class leads.
  predict(pixels) {
    const layers = this.distances(pixels);
    if (this.mirror) {
      this.distances(pixels, true).forEach(({ distances }, i) => {
        layers[i].distances = layers[i].distances.map((one, c) => (one + distances[c]) / 2);
      });
    }
    const totals = this.classes.map(() => 0);
    let weights = 0;
    return layers.map(({ distances, nearest }, i) => {
      distances.forEach((distance, c) => (totals[c] -= this.weights[i] * distance));
      weights += this.weights[i];
      const vote = best(distances.map((one) => -one));
      return { distances, nearest, vote, so_far: best(totals), lead: lead(totals) / weights };
    });
  }

  // The number of the layer, from 0, where an image exits. A margin of null is no early exit. NaN reaches no margin.
  exit(layers, margin) {
    const found = layers.findIndex((layer) => margin !== null && layer.lead >= margin);
    return found < 0 ? layers.length - 1 : found;
  }

  // Add a class: in every layer, the mean embedding of its examples becomes its reference, as in 'faustnet add-class'.
  addClass(name, examples) {
    const embedded = examples.map((pixels) => this.embeddings(pixels));
    this.layers.forEach(({ length }, layer) => {
      let mean = embedded[0][layer].map((_, i) => sum(embedded, (layers) => layers[layer][i]) / examples.length);
      if (length !== null) mean = OPERATIONS.normalise({ values: mean }, { gain: length }).values;
      const count = this.references[layer][0].length / mean.length, own = new Float32Array(count * mean.length);
      for (let k = 0; k < count; k++) own.set(mean, k * mean.length);
      this.references[layer].push(own);
    });
    this.classes.push(name);
  }

  // Remove the classes that were added.
  reset() {
    this.classes.length = this.trained;
    for (const own of this.references) own.length = this.trained;
  }
}

const best = (scores) => scores.indexOf(Math.max(...scores));

function lead(scores) {
  if (scores.length === 1) return Infinity;
  const [first, second] = Float64Array.from(scores).sort().reverse();
  return first - second;
}
