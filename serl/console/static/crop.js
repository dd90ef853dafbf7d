// The region of interest of a camera: drawn with the mouse, written to the arm's file.

const LEAST = 0.05;  // of the picture, along each side
const $ = (id) => document.getElementById(id);
let send = null;
let crops = {};

export function connectCrops(sender) {
  send = sender;
}

// The present crop is outlined; only cameras of an arm's file have one.
export function showCrops(now, mine) {
  crops = now || {};
  for (const figure of document.querySelectorAll("#views figure[data-camera]")) {
    const crop = crops[figure.dataset.camera];
    const tools = figure.querySelector(".crop") || (crop && addTools(figure));
    if (!tools) continue;
    tools.hidden = figure.querySelector(".frame").hidden = !crop;
    tools.querySelector("button").disabled = !mine;
    if (crop && !figure.classList.contains("cropping")) outline(figure, crop);
  }
}

function addTools(figure) {
  const [tools, frame] = [document.createElement("div"), document.createElement("div")];
  const [draw, use] = ["Crop", "Use it"].map((text) => {
    const button = document.createElement("button");
    button.textContent = text;
    return button;
  });
  tools.className = "crop";
  frame.className = "frame";
  use.hidden = true;
  tools.append(draw, use);
  figure.append(frame, tools);
  draw.addEventListener("click", (event) => {
    event.stopPropagation();
    draw.blur();
    const on = figure.classList.toggle("cropping");
    draw.textContent = on ? "Cancel" : "Crop";
    use.hidden = true;
    outline(figure, on ? [0, 0, 1, 1] : crops[figure.dataset.camera]);
  });
  use.addEventListener("click", (event) => {
    event.stopPropagation();
    send({ type: "crop", camera: figure.dataset.camera, crop: figure.crop });
    figure.classList.remove("cropping");
    draw.textContent = "Crop";
    use.hidden = true;
  });
  let start = null;
  figure.addEventListener("pointerdown", (event) => {
    if (!figure.classList.contains("cropping") || event.target.closest(".crop")) return;
    event.preventDefault();
    figure.setPointerCapture(event.pointerId);
    start = place(figure, event);
  });
  figure.addEventListener("pointermove", (event) => {
    if (start) outline(figure, between(start, place(figure, event)));
  });
  figure.addEventListener("pointerup", (event) => {
    if (!start) return;
    figure.crop = between(start, place(figure, event));
    start = null;
    const [left, top, right, bottom] = figure.crop;
    use.hidden = right - left < LEAST || bottom - top < LEAST;
  });
  return tools;
}

function outline(figure, [left, top, right, bottom]) {
  const style = figure.querySelector(".frame").style;
  Object.assign(style, { left: `${100 * left}%`, top: `${100 * top}%`, width: `${100 * (right - left)}%`, height: `${100 * (bottom - top)}%` });
}

function place(figure, event) {
  const box = figure.getBoundingClientRect();
  const share = (at, from, size) => Math.round(1000 * Math.max(0, Math.min(1, (at - from) / size))) / 1000;
  return [share(event.clientX, box.left, box.width), share(event.clientY, box.top, box.height)];
}

function between([x, y], [u, v]) {
  return [Math.min(x, u), Math.min(y, v), Math.max(x, u), Math.max(y, v)];
}
