// The curves of training, and the accuracy by layer and with early exit.

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
  Plotly.newPlot("accuracy", curves.map(trace("accuracy", "%", 2)), layout("%"), config("accuracy"));
  Plotly.newPlot("loss", curves.map(trace("loss", "", 4)), layout(""), config("loss"));
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

// Solid lines: the first layers together; dotted: each alone. Several runs have different colours.
function drawByLayer() {
  const voting = runs.filter((run) => run.voters.length > 1);
  const longest = Math.max(...voting.map((run) => run.voters.length));
  const trace = (run, key, title, line) => {
    const text = run[key].map((y, i) => {
      const who = key === "alone" ? run.voters[i] : i === 0 ? "{1}" : `{1${i > 1 ? "–" : ", "}${i + 1}}`;
      return plain(`${runs.length > 1 ? `${run.name}, ` : ""}${who} ${title}: ${y.toFixed(2)}%`);
    });
    const name = plain(runs.length > 1 ? `${run.name}, ${title}` : title);
    const x = run[key].map((_, i) => i + 1);
    return { x, y: run[key], name, text, hoverinfo: "text", mode: "lines+markers", line, marker: { size: 7 } };
  };
  const traces = voting.flatMap((run) => {
    const color = COLOURS[runs.indexOf(run) % COLOURS.length];
    return [
      trace(run, "together", "first layers together", { color, width: 3 }),
      trace(run, "alone", "alone", { color, width: 2, dash: "2px,3px" }),
    ];
  });
  const layout = {
    ...LAYOUT,
    margin: { l: 54, r: 12, t: 52, b: 44 },
    xaxis: { title: { text: "layer" }, zeroline: false, dtick: longest > 12 ? undefined : 1, range: [0.8, longest + 0.2] },
    yaxis: { ticksuffix: "%", zeroline: false, automargin: true },
    legend: { orientation: "h", y: 1, yanchor: "bottom" },
  };
  Plotly.newPlot("by-layer", traces, layout, config("layers"));
}

function drawEarlyExit() {
  const traces = runs.filter((run) => run.early_exit).map((run) => {
    const lines = run.early_exit, color = COLOURS[runs.indexOf(run) % COLOURS.length];
    const text = lines.map(({ threshold, accuracy, saved, leaving }) => {
      const margin = threshold === null ? "no early exit" : `margin ${threshold.toFixed(2)}`;
      const exits = leaving.map((share) => (100 * share).toFixed(2)).join(" ");
      const found = `${(100 * accuracy).toFixed(2)}%, ${(100 * saved).toFixed(2)}% saved`;
      return `${runs.length > 1 ? `${plain(run.name)}, ` : ""}${margin}: ${found}<br>exits after each layer, %: ${exits}`;
    });
    const [x, y] = ["saved", "accuracy"].map((key) => lines.map((line) => 100 * line[key]));
    return { x, y, name: plain(run.name), text, hoverinfo: "text", mode: "lines+markers", line: { color, width: 3 }, marker: { size: 7 } };
  });
  const layout = {
    ...LAYOUT,
    showlegend: traces.length > 1,
    margin: { l: 54, r: 12, t: 52, b: 44 },
    xaxis: { title: { text: "multiplications saved" }, ticksuffix: "%", zeroline: false },
    yaxis: { title: { text: "accuracy" }, ticksuffix: "%", zeroline: false, automargin: true },
    legend: { orientation: "h", y: 1, yanchor: "bottom" },
  };
  Plotly.newPlot("early-exit", traces, layout, config("early-exit"));
}

drawCurves();
offerCurves();
if (at("by-layer")) drawByLayer();
if (at("early-exit")) drawEarlyExit();
