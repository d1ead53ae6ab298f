// Ways to select an image: the map, the confusion matrices and the gallery.

const GALLERY = 60; // images that are shown at first
const ARROWS = { ArrowRight: [0, 1], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowUp: [-1, 0] };
const mapped = () => runs[chosen.run].layers[chosen.layer].map;
const score = (fisher) => (fisher === null ? "∞" : fisher.toFixed(2));
const narrow = matchMedia("(max-width: 60rem)");

function keep(image, view) {
  chosen.kept = true;
  showImage(image);
  placeAside(view);
}

// On a narrow screen, the selected image follows the view in which it was selected.
function placeAside(view) {
  if (!narrow.matches) return document.querySelector(".explorer").append(at("selected"));
  if (at(view).nextElementSibling !== at("selected")) at(view).after(at("selected"));
}

// The map

function placeMark() {
  const { xaxis, yaxis } = at("map")._fullLayout;
  const place = mapped()[chosen.image];
  if (!place) return (at("mark").hidden = true);
  const left = xaxis.d2p(place[0]), top = yaxis.d2p(place[1]);
  at("mark").hidden = left < 0 || top < 0 || left > xaxis._length || top > yaxis._length;
  at("mark").style.left = `${left + xaxis._offset}px`;
  at("mark").style.top = `${top + yaxis._offset}px`;
}

function mapTraces() {
  const run = runs[chosen.run], every = mapped().map((_, i) => i);
  const size = at("map").clientWidth < 500 ? 6 : 8;
  const trace = (name, images, marker, hoverinfo) => {
    const [x, y] = [0, 1].map((axis) => images.map((i) => mapped()[i][axis]));
    return { x, y, name: plain(name), customdata: images, marker, hoverinfo, mode: "markers" };
  };
  const classes = run.classes.map((name, number) => {
    const look = { color: COLOURS[number % COLOURS.length], symbol: SYMBOLS[number % SYMBOLS.length] };
    return trace(name, every.filter((i) => run.labels[i] === number), { ...look, size, opacity: 0.85 }, "none");
  });
  const ring = { symbol: "circle-open", size: size + 5, color: GREY, opacity: 0.7 };
  return [...classes, trace("wrong prediction", every.filter((i) => run.labels[i] !== run.predicted[i]), ring, "skip")];
}

function drawMap() {
  const run = runs[chosen.run], axis = { showgrid: false, zeroline: false, showticklabels: false };
  const layout = {
    ...LAYOUT,
    margin: { l: 8, r: 8, t: 30, b: 8 },
    xaxis: axis,
    yaxis: { ...axis, scaleanchor: "x" },
    showlegend: run.classes.length <= LARGEST_LEGEND,
    legend: { orientation: "h", y: 0, yanchor: "top" },
  };
  at("fisher").textContent = score(run.layers[chosen.layer].fisher);
  const largest = Math.max(...run.layers.map((layer) => layer.fisher ?? 0)) || 1;
  at("fishers").replaceChildren(...run.layers.map((layer, i) => {
    const bar = element("i", {});
    bar.style.setProperty("--share", (layer.fisher ?? largest) / largest);
    const kind = i === chosen.layer ? "chosen" : "";
    return element("li", { "data-score": score(layer.fisher), class: kind }, layer.name, bar);
  }));
  return Plotly.react("map", mapTraces(), layout, config("embeddings")).then(() => showImage(chosen.image));
}

function chooseRun(number) {
  const run = runs[number], total = run.confusion.flat().reduce((sum, count) => sum + count, 0);
  at("layer").replaceChildren(...run.layers.map((layer, i) => new Option(layer.name, i)));
  Object.assign(chosen, { run: number, layer: Math.min(chosen.layer, run.layers.length - 1), cell: null });
  chosen.image = Math.min(chosen.image, run.mapped - 1);
  at("run").value = number;
  at("layer").value = chosen.layer;
  const part = run.mapped < total ? `${counted(run.mapped)} of ${counted(total)}, the first of each class` : `all ${counted(total)}`;
  at("map-note").textContent =
    `The map shows ${part}. It was computed with t-SNE; the map of a layer starts from that of the layer before.`;
  showGallery();
  return drawMap();
}

function stepOnMap(event) {
  if (event.target !== at("map")) return; // buttons inside the map use keys themselves
  if (event.key === "Escape") chosen.kept = false;
  const step = ARROWS[event.key];
  if (!step) return;
  event.preventDefault();
  const count = runs[chosen.run].mapped;
  const next = chosen.image < count ? (chosen.image + step[0] + step[1] + count) % count : 0;
  keep(next, "map-view");
}

// The confusion matrices

function openCell(cell, scrolls) {
  const table = cell.closest("table"), number = Number(table.dataset.run);
  if (number !== chosen.run) chooseRun(number);
  chosen.cell = [cell.parentElement.rowIndex - 1, cell.cellIndex - 1];
  cell.focus();
  const images = showGallery();
  if (images.length) keep(images[0], "gallery-view");
  if (scrolls) at("gallery-title").scrollIntoView({ block: "nearest" });
}

function stepInTable(event) {
  const step = ARROWS[event.key], cell = event.target.closest("td");
  const opens = event.key === "Enter" || event.key === " ";
  if (!cell || (!step && !opens)) return;
  event.preventDefault();
  const row = cell.closest("tbody").rows[cell.parentElement.rowIndex - 1 + (step?.[0] ?? 0)];
  const next = row?.cells[cell.cellIndex + (step?.[1] ?? 0)];
  if (next?.tagName === "TD") openCell(next, opens);
}

// The gallery: the images of a cell, or all wrong answers

function thumb(run, image) {
  const made = element("button", { type: "button", "data-image": image, "aria-pressed": "false", tabindex: -1 });
  const names = [run.labels[image], run.predicted[image]].map((number) => run.classes[number]);
  if (run.sheet !== null) {
    const canvas = element("canvas", {});
    paint(canvas, run, image);
    made.append(canvas);
  } else {
    made.append(element("span", { class: "words" }, run.texts === null ? `row ${counted(run.positions[image] + 1)}` : run.texts[image]));
  }
  made.append(element("span", { class: "names", title: `true class ${names[0]}, predicted ${names[1]}` }, names.join(" → ")));
  return made;
}

function galleryImages() {
  const run = runs[chosen.run], every = run.labels.map((_, i) => i);
  if (chosen.cell) {
    const [truth, answer] = chosen.cell;
    return every.filter((i) => run.labels[i] === truth && run.predicted[i] === answer);
  }
  const leads = every.map((i) => lead(run, i));
  return every.filter((i) => run.labels[i] !== run.predicted[i]).sort((a, b) => leads[b] - leads[a]);
}

function showGallery(most = GALLERY) {
  const run = runs[chosen.run], images = galleryImages(), things = run.texts ? "texts" : run.sheet === null ? "rows" : "images";
  const wrong = run.confusion.flatMap((row, i) => row.filter((_, j) => j !== i)).reduce((sum, count) => sum + count, 0);
  const [truth, answer] = chosen.cell ?? [];
  const total = chosen.cell ? run.confusion[truth][answer] : wrong;
  const of = runs.length > 1 ? ` of ${run.name}` : "";
  at("gallery-title").textContent = chosen.cell
    ? `True class ${run.classes[truth]}, predicted ${run.classes[answer]}${of}` : `Wrong answers${of}`;
  const count = images.length === total ? `${counted(total)} ${things}` : `${counted(images.length)} of ${counted(total)} ${things} are in this page`;
  at("gallery-note").textContent = chosen.cell || !images.length
    ? `${count}.` : `${count}, true class → predicted class, those with the largest lead of the predicted class first.`;
  at("all-wrong").hidden = !chosen.cell;
  at("more").hidden = images.length <= most;
  at("more").textContent = `Show all ${counted(images.length)}`;
  at("gallery").className = run.sheet === null ? "texts" : "";
  at("gallery").replaceChildren(...images.slice(0, most).map((image) => thumb(run, image)));
  at("gallery").firstElementChild?.setAttribute("tabindex", 0);
  for (const cell of document.querySelectorAll(".confusion [aria-selected]")) cell.removeAttribute("aria-selected");
  if (chosen.cell) {
    const table = document.querySelector(`.confusion[data-run="${chosen.run}"]`);
    table.tBodies[0].rows[truth].cells[answer + 1].setAttribute("aria-selected", "true");
  }
  return images;
}

function chooseThumb(one) {
  for (const other of at("gallery").children) other.tabIndex = other === one ? 0 : -1;
  one.focus();
  keep(Number(one.dataset.image), "gallery-view");
}

function stepInGallery(event) {
  const step = ARROWS[event.key], thumbs = [...at("gallery").children], from = thumbs.indexOf(event.target);
  if (!step || from < 0) return;
  event.preventDefault();
  const across = thumbs.filter((one) => one.offsetTop === thumbs[0].offsetTop).length;
  const next = thumbs[from + step[0] * across + step[1]];
  if (next) chooseThumb(next);
}

function offerImages() {
  at("run").append(...runs.map((run, i) => new Option(run.name, i)));
  at("run-choice").hidden = runs.length === 1;
  at("run").addEventListener("change", () => chooseRun(Number(at("run").value)));
  at("layer").addEventListener("change", () => {
    chosen.layer = Number(at("layer").value);
    drawMap();
  });
  at("map").addEventListener("keydown", stepOnMap);
  // Plotly keeps the browser from moving the focus to a plot that is clicked.
  at("map").addEventListener("pointerdown", () => at("map").focus({ preventScroll: true }), true);
  for (const table of document.querySelectorAll(".confusion")) {
    for (const cell of table.tBodies[0].querySelectorAll("td")) cell.tabIndex = -1;
    table.tBodies[0].querySelector("td").tabIndex = 0;
    table.tBodies[0].addEventListener("click", (event) => {
      const cell = event.target.closest("td");
      if (cell) openCell(cell, true);
    });
    table.tBodies[0].addEventListener("keydown", stepInTable);
  }
  at("gallery").addEventListener("click", (event) => {
    const one = event.target.closest("button");
    if (one) chooseThumb(one);
  });
  at("gallery").addEventListener("keydown", stepInGallery);
  at("more").addEventListener("click", () => showGallery(Infinity));
  at("all-wrong").addEventListener("click", () => {
    chosen.cell = null;
    showGallery();
  });
  narrow.addEventListener("change", () => placeAside("map-view"));
  chooseRun(0).then(() => {
    at("map").on("plotly_hover", ({ points }) => chosen.kept || showImage(points[0].customdata));
    at("map").on("plotly_click", ({ points }) => keep(points[0].customdata, "map-view"));
    at("map").on("plotly_afterplot", placeMark);
  });
}

offerImages();
placeAside("map-view");
