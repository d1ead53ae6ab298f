"use strict";
// What all parts of the page use.

const { runs, curves, sheets } = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const GREY = "#888888";
const COLOURS = ["#0077bb", "#ee7733", "#009988", "#cc3377", "#8a63d2", "#a07800", "#33aadd", "#cc3311", "#5f8f2f", GREY];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "hourglass"];
const DASHES = ["8px,4px", "2px,3px", "8px,3px,2px,3px", "14px,4px", "4px,2px", "14px,3px,2px,3px"];
const LARGEST_LEGEND = 30; // classes
const BUTTONS = [["zoom2d", "pan2d", "resetScale2d", "toImage"]];
const LAYOUT = {
  paper_bgcolor: "rgba(0,0,0,0)",
  plot_bgcolor: "rgba(0,0,0,0)",
  font: { family: "system-ui, sans-serif", size: 13 },
  hovermode: "closest",
  dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // on touch screens, dragging scrolls the page
};

// Plotly interprets tags and entities in text.
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// A button of each plot saves it as an SVG file.
const config = (filename) => ({
  responsive: true,
  displaylogo: false,
  showSendToCloud: false,
  modeBarButtons: BUTTONS,
  toImageButtonOptions: { format: "svg", filename },
});

function element(tag, attributes, ...children) {
  const drawn = tag === "svg" || tag === "line";
  const made = drawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const decoded = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
const counted = (number) => number.toLocaleString("en");

// Paper is narrower than the window, and plots keep the size at which they were drawn.
const sized = (change) => document.querySelectorAll(".js-plotly-plot").forEach((plot) => Plotly.relayout(plot, change));
addEventListener("beforeprint", () => sized({ width: 640, autosize: false }));
addEventListener("afterprint", () => sized({ width: null, autosize: true }));
