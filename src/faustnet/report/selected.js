// The selected image: its picture or text, and what every layer answers.

const chosen = { run: 0, layer: 0, image: 0, kept: false, cell: null }; // kept: the pointer does not change the image
const pictures = sheets.map((sheet) => Object.assign(new Image(), { src: sheet.source }));

function paint(canvas, run, image, isCurrent = () => true) {
  const { columns, width, height } = sheets[run.sheet];
  Object.assign(canvas, { width, height });
  pictures[run.sheet].decode().then(() => {
    if (!isCurrent()) return;
    const left = (image % columns) * width, top = Math.floor(image / columns) * height;
    canvas.getContext("2d").drawImage(pictures[run.sheet], left, top, width, height, 0, 0, width, height);
  });
}

// The scores of some classes by every voter, and their weighted sum.
function scoresOf(run, image) {
  const { count } = run.scores;
  run.values ??= new Float32Array(decoded(run.scores.values));
  run.numbers ??= run.scores.classes === null ? null : new Uint16Array(decoded(run.scores.classes));
  const voters = run.voters.map((_, voter) => {
    const begin = (voter * run.labels.length + image) * count;
    return Array.from(run.values.subarray(begin, begin + count));
  });
  const classes = Array.from({ length: count }, (_, i) => (run.numbers ? run.numbers[image * count + i] : i));
  const sum = classes.map((_, i) => voters.reduce((total, values, voter) => total + run.weights[voter] * values[i], 0));
  return { classes, voters, sum };
}

// By how much the predicted class is better than the true one.
function lead(run, image) {
  const { classes, sum } = scoresOf(run, image);
  const [answer, truth] = [run.predicted[image], run.labels[image]].map((number) => sum[classes.indexOf(number)]);
  return run.scores.distances ? truth - answer : answer - truth;
}

const firstLayers = (count) => `{${count > 3 ? `1–${count}` : [1, 2, 3].slice(0, count).join(", ")}}`;

function scoreTable(run, image) {
  const { classes, voters, sum } = scoresOf(run, image), several = voters.length > 1, truth = run.labels[image];
  const columns = several ? [...voters, sum] : voters;
  const names = several ? [...run.voters, new Set(run.weights).size > 1 ? "weighted sum" : "sum"] : run.voters;
  const best = columns.map((values) => (run.scores.distances ? Math.min(...values) : Math.max(...values)));
  const worst = columns.map((values) => (run.scores.distances ? Math.max(...values) : Math.min(...values)));
  const head = element("tr", {}, ...["class", ...names].map((name) => element("th", { scope: "col" }, name)));
  const rows = classes.map((number, i) => {
    const name = element("th", { scope: "row", title: run.classes[number], class: number === truth ? "truth" : "" }, run.classes[number]);
    const cells = columns.map((values, c) => {
      const share = (values[i] - worst[c]) / (best[c] - worst[c] || 1);
      const cell = element("td", { class: values[i] === best[c] ? "best" : "" }, values[i].toFixed(2));
      cell.style.setProperty("--share", Number.isFinite(share) ? share : 0);
      return cell;
    });
    return element("tr", {}, name, ...cells);
  });
  const answers = (label, numbers, titles = []) => element("tr", {}, element("th", { scope: "row" }, label), ...numbers.map((number, i) =>
    element("td", { class: number === truth ? "right" : "wrong", title: titles[i] ?? "" }, run.classes[number])));
  const votes = run.votes.map((voter) => voter[image]), first = run.first_votes.map((voter) => voter[image]);
  const foot = [answers(several ? "vote" : "answer", several ? [...votes, run.predicted[image]] : votes)];
  if (several) {
    const sets = first.map((_, i) => firstLayers(i + 1));
    foot.push(element("tr", { class: "sets" }, element("th", { scope: "row" }, "first layers"), ...sets.map((set) => element("td", {}, set))));
    foot.push(answers("together", first, sets));
  }
  return [element("thead", {}, head), element("tbody", {}, ...rows), element("tfoot", {}, ...foot)];
}

function scoreNote(run) {
  const shown = run.scores.count < run.classes.length ? ` ${run.scores.count} of ${run.classes.length} classes are shown.` : "";
  if (!run.scores.distances) return `Scores of the classes; larger is better. ★ marks the true class.${shown}`;
  return `Distance to the reference of each class. A layer votes for the nearest class (framed). ★ marks the true class.${shown}`;
}

// Show an image beside the views; those on the map are also marked there.
function showImage(image) {
  chosen.image = image;
  const run = runs[chosen.run], truth = run.labels[image], answer = run.predicted[image];
  at("which").textContent = `Test ${run.texts ? "text" : run.sheet === null ? "row" : "image"} ${counted(run.positions[image] + 1)}`;
  at("true").textContent = run.classes[truth];
  at("predicted").textContent = run.classes[answer];
  at("predicted").className = truth === answer ? "right" : "wrong";
  at("picture").setAttribute("aria-label", `test image of class ${run.classes[truth]}`);
  at("picture").hidden = run.sheet === null;
  at("text").hidden = run.texts === null;
  at("text").textContent = run.texts === null ? "" : run.texts[image];
  if (run.sheet !== null) paint(at("picture"), run, image, () => chosen.image === image && runs[chosen.run] === run);
  at("scores").replaceChildren(...scoreTable(run, image));
  at("scores-note").textContent = scoreNote(run);
  for (const thumb of at("gallery").children) thumb.setAttribute("aria-pressed", Number(thumb.dataset.image) === image);
  placeMark();
}
