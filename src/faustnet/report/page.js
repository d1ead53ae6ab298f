"use strict";
(() => {
  const { runs, curves, sheets } = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const GREY = "#888888";
  const COLOURS = ["#0077bb", "#ee7733", "#009988", "#cc3377", "#8a63d2", "#a07800", "#33aadd", "#cc3311", "#5f8f2f", GREY];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "hourglass"];
  const DASHES = ["8px,4px", "2px,3px", "8px,3px,2px,3px", "14px,4px", "4px,2px", "14px,3px,2px,3px"];
  const LARGEST_LEGEND = 30; // classes
  const BUTTONS = [["zoom2d", "pan2d", "resetScale2d", "toImage"]];
  const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtons: BUTTONS };
  const LAYOUT = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 13 },
    hovermode: "closest",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // on touch screens, dragging scrolls the page
  };

  // Plotly interprets tags and entities in text.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function element(tag, attributes, ...children) {
    const drawn = tag === "svg" || tag === "line";
    const made = drawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // One run: a colour per layer or output. Several runs: a colour per run, a dash per layer or output.
  function look(curve) {
    const dash = curve.together ? "solid" : DASHES[curve.place % DASHES.length];
    const width = curve.together ? 3 : 2;
    if (runs.length > 1) return { color: COLOURS[curve.run % COLOURS.length], dash: curve.alone ? "solid" : dash, width };
    return { color: curve.together ? GREY : COLOURS[curve.place % COLOURS.length], dash: "solid", width };
  }

  function drawCurves() {
    const longest = Math.max(...runs.map((run) => run.epochs.length));
    const trace = (values, unit, digits) => (curve) => {
      const { epochs, name } = runs[curve.run];
      const title = plain(runs.length > 1 ? `${name}, ${curve.name}` : curve.name);
      const shown = (y) => (y === null ? "" : `${y.toFixed(digits)}${unit}`);
      return {
        x: epochs,
        y: curve[values],
        name: title,
        line: look(curve),
        marker: { size: epochs.length > 40 ? 3 : 5 },
        mode: "lines+markers",
        connectgaps: true, // across epochs without evaluation
        text: curve[values].map((y, i) => `${title}<br>epoch ${epochs[i]}: ${shown(y)}`),
        hoverinfo: "text",
      };
    };
    const layout = (ticksuffix) => ({
      ...LAYOUT,
      showlegend: false,
      margin: { l: 54, r: 12, t: 30, b: 44 },
      xaxis: { title: { text: "epoch" }, zeroline: false, dtick: longest > 12 ? undefined : 1 },
      yaxis: { ticksuffix, zeroline: false, automargin: true },
    });
    Plotly.newPlot("accuracy", curves.map(trace("accuracy", "%", 2)), layout("%"), CONFIG);
    Plotly.newPlot("loss", curves.map(trace("loss", "", 4)), layout(""), CONFIG);
  }

  function swatch(curve) {
    const { color, dash, width } = look(curve);
    const line = element("line", { x1: 0, y1: 5, x2: 34, y2: 5, stroke: color, "stroke-width": width });
    if (dash !== "solid") line.setAttribute("stroke-dasharray", dash.replaceAll("px", ""));
    return element("svg", { width: 34, height: 10, "aria-hidden": "true" }, line);
  }

  function offerCurves() {
    const groups = []; // a checkbox for several curves, and their checkboxes
    const ofCurve = curves.map((curve, i) => element("input", { type: "checkbox", "data-curve": i, checked: "" }));
    const refresh = () => {
      for (const [all, boxes] of groups) {
        const on = boxes.filter((box) => box.checked).length;
        all.checked = on === boxes.length;
        all.indeterminate = on > 0 && on < boxes.length;
      }
    };
    const apply = (boxes) => {
      const numbers = boxes.map((box) => Number(box.dataset.curve));
      for (const plot of ["accuracy", "loss"]) Plotly.restyle(plot, { visible: boxes.map((box) => box.checked) }, numbers);
      refresh();
    };
    const switchOf = (boxes, attributes) => {
      const all = element("input", { type: "checkbox", checked: "", ...attributes });
      all.addEventListener("change", () => {
        for (const box of boxes) box.checked = all.checked;
        apply(boxes);
      });
      groups.push([all, boxes]);
      return all;
    };
    for (const box of ofCurve) box.addEventListener("change", () => apply([box]));
    const every = element("label", {}, switchOf(ofCurve, { id: "all-curves" }), "all curves");
    if (runs.length > 1) at("curves").append(every);
    runs.forEach((run, r) => {
      const mine = ofCurve.filter((_, i) => curves[i].run === r);
      const labels = mine.map((box) => {
        const curve = curves[box.dataset.curve];
        return element("label", {}, box, swatch(curve), curve.name);
      });
      const name = runs.length > 1 ? element("label", {}, switchOf(mine, { "data-run": r }), run.name) : every;
      at("curves").append(element("fieldset", {}, element("legend", {}, name), ...labels));
    });
  }

  const chosen = { run: 0, layer: 0, image: 0 };
  const mapped = () => runs[chosen.run].layers[chosen.layer].map;
  const score = (fisher) => (fisher === null ? "∞" : fisher.toPrecision(3));

  function placeMark() {
    const { xaxis, yaxis } = at("map")._fullLayout;
    const [x, y] = mapped()[chosen.image];
    const left = xaxis.d2p(x), top = yaxis.d2p(y);
    at("mark").hidden = left < 0 || top < 0 || left > xaxis._length || top > yaxis._length;
    at("mark").style.left = `${left + xaxis._offset}px`;
    at("mark").style.top = `${top + yaxis._offset}px`;
  }

  const pictures = sheets.map((sheet) => Object.assign(new Image(), { src: sheet.source }));
  function drawPicture() {
    const run = runs[chosen.run], canvas = at("picture");
    canvas.hidden = run.sheet === null;
    at("text").hidden = run.texts === null;
    at("text").textContent = run.texts === null ? "" : run.texts[chosen.image];
    if (canvas.hidden) return;
    const { columns, width, height } = sheets[run.sheet], picture = pictures[run.sheet], image = chosen.image;
    Object.assign(canvas, { width, height });
    picture.decode().then(() => {
      if (chosen.image !== image || runs[chosen.run] !== run) return;
      const left = (image % columns) * width, top = Math.floor(image / columns) * height;
      canvas.getContext("2d").drawImage(picture, left, top, width, height, 0, 0, width, height);
    });
  }

  function showImage(image) {
    chosen.image = image;
    const run = runs[chosen.run], truth = run.labels[image], answer = run.predicted[image];
    at("true").textContent = run.classes[truth];
    at("predicted").textContent = run.classes[answer];
    at("predicted").className = truth === answer ? "right" : "wrong";
    at("picture").setAttribute("aria-label", `test image of class ${run.classes[truth]}`);
    drawPicture();
    placeMark();
  }

  function mapTraces() {
    const run = runs[chosen.run], every = run.labels.map((_, i) => i);
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
    return Plotly.react("map", mapTraces(), layout, CONFIG).then(() => showImage(chosen.image));
  }

  function chooseRun(number) {
    const run = runs[number];
    at("layer").replaceChildren(...run.layers.map((layer, i) => new Option(layer.name, i)));
    Object.assign(chosen, { run: number, layer: Math.min(chosen.layer, run.layers.length - 1) });
    chosen.image = Math.min(chosen.image, run.labels.length - 1);
    at("layer").value = chosen.layer;
    return drawMap();
  }

  function offerMap() {
    at("run").append(...runs.map((run, i) => new Option(run.name, i)));
    at("run-choice").hidden = runs.length === 1;
    at("run").addEventListener("change", () => chooseRun(Number(at("run").value)));
    at("layer").addEventListener("change", () => {
      chosen.layer = Number(at("layer").value);
      drawMap();
    });
    at("map").addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step || event.target !== at("map")) return; // buttons inside the map use arrow keys themselves
      event.preventDefault();
      const count = runs[chosen.run].labels.length;
      showImage((chosen.image + step + count) % count);
    });
    chooseRun(0).then(() => {
      at("map").on("plotly_hover", ({ points }) => showImage(points[0].customdata));
      at("map").on("plotly_afterplot", placeMark);
    });
  }

  // Paper is narrower than the window, and plots keep the size at which they were drawn.
  const sized = (change) => ["accuracy", "loss", "map"].forEach((plot) => Plotly.relayout(plot, change));
  addEventListener("beforeprint", () => sized({ width: 640, autosize: false }));
  addEventListener("afterprint", () => sized({ width: null, autosize: true }));

  drawCurves();
  offerCurves();
  offerMap();
})();
