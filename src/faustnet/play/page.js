// The page: the pad on one side, the answers of the layers on the other.

(() => {
  const at = (id) => document.getElementById(id);
  const facts = JSON.parse(at("facts").textContent);
  const { samples, exits, drawing } = facts, { shape } = facts.model, size = shape[0] * shape[1] * shape[2];
  const MOST_ROWS = 12; // classes that are all shown; of more, the nearest ones
  const LONG_NAME = 6; // letters
  const EXAMPLES = 3; // of a new class
  const SLOW = 50, PAUSE = 150; // ms: a network that takes longer than the first waits for a pause of drawing
  const CHECKED = 1000; // ms that the check may take
  const TOLERANCE = 1e-3; // of distances, relative to the largest one, or to 1 if that is larger

  const decoded = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const image = (bytes, number) => bytes.subarray(number * size, (number + 1) * size);
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const rounded = (value) => (Number.isFinite(value) ? value.toFixed(Math.abs(value) < 10 ? 2 : 1) : "–");
  const pixelsOf = decoded(samples.pixels);
  const representatives = facts.representatives === null ? null : decoded(facts.representatives);

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function picture(pixels, label) {
    const canvas = element("canvas", { width: shape[2], height: shape[1], role: "img", "aria-label": label });
    if (pixels) paint(canvas, pixels, shape);
    return canvas;
  }

  const model = new Model(facts, decoded(at("weights").textContent));
  const own = []; // of each class that was added, the mean of its examples
  const examples = []; // of the next one
  const pad = new Pad(at("pad"), shape, drawing, () => schedule());
  const isOwn = (number) => number >= model.trained;

  // The parts of a layer's card that change.
  const cards = model.layers.map((_, i) => {
    const part = (tag, name) => element(tag, { class: name });
    const found = { vote: part("strong", "vote"), figure: part("figure", ""), distances: part("ol", "distances") };
    Object.assign(found, { soFar: part("p", "so-far"), stop: part("p", "stop") });
    const right = `Alone right on ${percent(facts.layer_accuracy[i])} of the test images`;
    found.card = element("article", { class: "layer", "aria-label": `layer ${i + 1}` },
      element("div", {}, element("h3", {}, `Layer ${i + 1} answers`, found.vote), found.figure),
      element("p", { class: "axis", "aria-hidden": "true" }, element("span", {}, "near"), element("span", {}, "far")),
      found.distances, found.soFar, found.stop, element("p", { class: "note" }, right));
    return found;
  });
  at("layers").append(...cards.map(({ card }) => card));

  function makeRows() {
    const count = model.classes.length <= MOST_ROWS ? model.classes.length : MOST_ROWS - 2;
    at("layers").classList.toggle("long", model.classes.some((name) => name.length > LONG_NAME));
    for (const { distances } of cards) {
      distances.replaceChildren(...Array.from({ length: count }, () => {
        return element("li", {}, element("b", {}), element("i", {}), element("span", {}));
      }));
    }
  }

  function showDistances(list, found) {
    const every = model.classes.map((_, c) => c), rows = [...list.children];
    const order = rows.length === every.length ? every : every.sort((a, b) => found.distances[a] - found.distances[b]);
    const farthest = Math.max(...found.distances, 1e-9), digits = farthest < 10 ? 2 : 1;
    rows.forEach((row, place) => {
      const c = order[place], [name, track, number] = row.children;
      name.textContent = name.title = model.classes[c];
      number.textContent = found.distances.length ? found.distances[c].toFixed(digits) : "";
      track.style.setProperty("--far", found.distances.length ? found.distances[c] / farthest : 0);
      row.className = `${c === found.vote ? "nearest" : ""} ${isOwn(c) ? "own" : ""}`;
    });
  }

  function showNearest(figure, { vote, nearest }) {
    const name = model.classes[vote], count = representatives ? representatives.length / size / model.trained : 0;
    const show = (caption, pixels, label) => {
      figure.replaceChildren(element("figcaption", {}, caption), picture(pixels, label));
    };
    if (isOwn(vote)) show("mean of your examples", own[vote - model.trained], `mean of the examples of ${name}`);
    else if (!representatives) figure.replaceChildren();
    else show("nearest training image", image(representatives, vote * count + nearest[vote]), `training image of ${name}`);
  }

  const margin = () => exits[at("margin").value];

  function showLayer(parts, found, i, exit) {
    const { card, vote, figure, distances, soFar, stop } = parts, counts = model.weights[i] > 0;
    vote.textContent = model.classes[found.vote];
    vote.classList.toggle("own", isOwn(found.vote));
    showDistances(distances, found);
    showNearest(figure, found);
    const together = i === 0 ? "Layer 1" : `Layers 1–${i + 1} together`;
    const ahead = `${together}: ${model.classes[found.so_far]}, ahead by ${rounded(found.lead)}`;
    soFar.textContent = counts ? ahead : "This layer has no weight in the answer.";
    card.classList.toggle("exits", i === exit && i + 1 < cards.length);
    card.classList.toggle("skipped", i > exit);
    if (i < exit) stop.textContent = "The lead is too small to stop here.";
    else if (i > exit) stop.textContent = "Not needed with early exit.";
    else stop.textContent = i + 1 < cards.length ? "Could stop here: a clear lead." : "";
  }

  function showBlank() {
    for (const { vote, figure, distances, soFar, stop, card } of cards) {
      for (const part of [vote, soFar, stop]) part.textContent = "";
      vote.textContent = "–";
      figure.replaceChildren();
      card.classList.remove("exits", "skipped");
      showDistances(distances, { distances: [], vote: -1 });
    }
    at("answer").textContent = "–";
    at("votes").textContent = "";
    at("remark").textContent = `${drawing ? "Draw something" : "Open an image"}, or click on a test image.`;
  }

  let milliseconds = 0, waiting = null, speaking = null;

  function schedule() {
    if (milliseconds > SLOW) clearTimeout(waiting);
    else if (waiting !== null) return;
    const later = milliseconds > SLOW ? (call) => setTimeout(call, PAUSE) : requestAnimationFrame;
    waiting = later(refresh);
  }

  function refresh() {
    waiting = null;
    const pixels = pad.pixels();
    document.body.classList.toggle("empty", pixels === null);
    at("example").disabled = pixels === null;
    for (const button of at("samples").children) button.setAttribute("aria-pressed", pad.about === button.title);
    paint(at("seen"), pixels ?? new Uint8Array(size).fill(drawing?.background ?? 0), shape);
    if (pixels === null) return showBlank();
    const begin = performance.now(), layers = model.predict(pixels);
    milliseconds = performance.now() - begin;
    const exit = model.exit(layers, margin().threshold), answer = layers.at(-1).so_far;
    layers.forEach((found, i) => showLayer(cards[i], found, i, exit));
    at("answer").textContent = model.classes[answer];
    at("answer").classList.toggle("own", isOwn(answer));
    at("remark").textContent = pad.about ?? "";
    const votes = layers.map(({ vote }, i) => `layer ${i + 1}: ${model.classes[vote]}`).join(", ");
    at("votes").textContent = `Alone: ${votes}`;
    clearTimeout(speaking); // for screen readers, after a pause
    speaking = setTimeout(() => (at("status").textContent = `Answer: ${model.classes[answer]}. ${votes}.`), 500);
  }

  function showMargin() {
    const { threshold, accuracy, saved, leaving } = margin();
    at("lead").textContent = threshold === null ? "∞ (never)" : rounded(threshold);
    const early = leaving.slice(0, -1).reduce((a, b) => a + b, 0);
    const images = `${facts.images.toLocaleString("en")} test images${own.length ? ", without your classes" : ""}`;
    const effect = `${percent(early)} stop early, which saves ${percent(saved)} of the multiplications`;
    const without = `(without early exit: ${percent(facts.accuracy)})`;
    at("effect").textContent = `On ${images}: ${effect}; ${percent(accuracy)} are right ${without}.`;
    schedule();
  }

  function say(sentence) {
    at("mistake").textContent = sentence;
  }

  async function open(file) {
    if (!file) return;
    try {
      const { pixels, inverted } = await readImage(file, shape, drawing);
      const note = inverted ? ", with light and dark exchanged, to be like the training images" : "";
      pad.setImage(pixels, `Your image ${file.name}${note}.`);
      say("");
    } catch {
      say(`${file.name} is not an image that this browser can read: choose another file.`);
    }
  }

  function showExamples() {
    const slots = Array.from({ length: EXAMPLES }, (_, i) => {
      return picture(examples[i], examples[i] ? `example ${i + 1}` : "no example yet");
    });
    at("examples").replaceChildren(...slots);
    at("example").textContent = `Use the ${drawing ? "drawing" : "image"} as example ${examples.length + 1} of ${EXAMPLES}`;
    at("forget").hidden = own.length === 0;
  }

  function addExample() {
    const name = at("name").value.trim(), pixels = pad.pixels();
    const tell = (sentence) => (at("taught").textContent = sentence);
    if (!name) return tell("Give the new class a name first.");
    if (model.classes.includes(name)) return tell(`There is already a class ${name}: choose another name.`);
    examples.push(pixels);
    if (examples.length < EXAMPLES) tell(`${EXAMPLES - examples.length} more of ${name}.`);
    else {
      model.addClass(name, examples);
      own.push(examples[0].map((_, i) => Math.round(examples.reduce((total, one) => total + one[i], 0) / EXAMPLES)));
      examples.length = 0;
      at("name").value = `my class ${own.length + 1}`;
      tell(`The network now knows ${name}, in every layer. ${drawing ? "Draw" : "Open"} another ${name} to try it.`);
      makeRows();
      showMargin();
    }
    showExamples();
    pad.clear();
    if (drawing) at("pad").focus({ preventScroll: true });
  }

  function forget() {
    model.reset();
    own.length = examples.length = 0;
    at("taught").textContent = "";
    makeRows();
    showExamples();
    showMargin();
  }

  // Compare the distances with those that PyTorch computed when the page was written, image by image.
  function check(number = 0, worst = 0, spent = 0) {
    const begin = performance.now(), layers = model.predict(image(pixelsOf, number));
    const time = performance.now() - begin, scores = samples.scores[number];
    layers.forEach(({ distances }, i) => scores[i].forEach((score, c) => {
      worst = Math.max(worst, Math.abs(distances[c] + score) / Math.max(1, -Math.min(...scores[i])));
    }));
    const count = number + 1, sum = spent + time;
    if (count < samples.labels.length && sum < CHECKED) return void setTimeout(check, 0, count, worst, sum);
    const difference = `${worst.toExponential(0)}, relative to the largest one`, took = `${rounded(sum / count)} ms`;
    at("check").textContent = worst <= TOLERANCE
      ? `Checked in this browser: on ${count} test images, all distances agree with PyTorch's to ${difference}. ` +
        `A prediction took ${took} on average.`
      : `Do not rely on this page: in this browser, distances differ from PyTorch's by up to ${difference}.`;
    at("check").dataset.difference = worst;
  }

  samples.labels.forEach((label, i) => {
    const number = samples.labels.slice(0, i + 1).filter((other) => other === label).length;
    const about = `This is test image ${number} of class ${model.classes[label]}.`;
    const button = element("button", { type: "button", title: about, "aria-label": about }, picture(image(pixelsOf, i), ""));
    button.addEventListener("click", () => pad.setImage(image(pixelsOf, i), about));
    at("samples").append(button);
  });
  Object.assign(at("seen"), { width: 4 * shape[2], height: 4 * shape[1] });
  at("margin").max = exits.length - 1;
  at("margin").value = Math.floor((exits.length - 1) / 2);
  at("margin").addEventListener("input", showMargin);
  at("clear").addEventListener("click", () => pad.clear());
  at("undo")?.addEventListener("click", () => pad.undo());
  at("file").addEventListener("change", (event) => open(event.target.files[0]).then(() => (event.target.value = "")));
  at("example").addEventListener("click", addExample);
  at("forget").addEventListener("click", forget);
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault(); // the browser would leave the page
    open(event.dataTransfer.files[0]);
  });
  makeRows();
  showExamples();
  showMargin();
  pad.setImage(image(pixelsOf, 0), at("samples").children[0].title);
  setTimeout(check);
  window.play = { model, pad, refresh, schedule }; // for the console
})();
