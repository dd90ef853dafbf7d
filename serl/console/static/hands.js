// Keys, the on-screen pad and a gamepad, as one wish: motion along x y z roll pitch yaw gripper,
// and whether hands are on. A person stands behind the robot: x is forward, y to the left, z up.

const KEYS = {
  KeyW: [0, 1], KeyS: [0, -1], KeyA: [1, 1], KeyD: [1, -1], KeyR: [2, 1], KeyF: [2, -1],
  KeyL: [3, 1], KeyJ: [3, -1], KeyI: [4, 1], KeyK: [4, -1], KeyU: [5, 1], KeyO: [5, -1],
  KeyV: [6, 1], KeyC: [6, -1],
};
const SAYINGS = { Enter: "success", Backspace: "failure", KeyX: "discard", KeyN: "reset", KeyP: "pause", KeyZ: "undo",
  Equal: "reward", Minus: "penalty", KeyQ: "left", KeyE: "right" };
const MARKS = { Digit1: "positive", Digit0: "negative" };  // repeated while held
const DEAD_ZONE = 0.1;
const KEEP_MS = 1000;  // of control, from one arm to the other
const held = new Set();
const pushed = new Map();
let padSaid = new Set();
let padInHand = "";  // the gamepad in use
let otherArm = false;  // the arm was changed while a key for the previous arm is still held
let keptUntil = 0;

// A key with Ctrl, Alt or Meta is the browser's.
export const isBrowsers = (event) => event.ctrlKey || event.metaKey || event.altKey;

export function onKey(event, say) {
  const down = event.type === "keydown";
  const moves = event.code in KEYS || event.code === "Space";
  if (isBrowsers(event)) {
    held.clear();  // the browser may report no release
    if (event.code !== "Escape") return;
  }
  if (moves) {
    event.preventDefault();
    down ? held.add(event.code) : held.delete(event.code);
  } else if (down && event.code in MARKS) {
    event.preventDefault();
    say(MARKS[event.code]);
  } else if (down && !event.repeat) {
    const what = event.code === "Escape" ? "estop" : SAYINGS[event.code];
    if (what) {
      event.preventDefault();
      say(what);
    }
  }
}

export function onPad(button, down) {
  const place = [Number(button.dataset.axis), Number(button.dataset.sign)];
  down ? pushed.set(button, place) : pushed.delete(button);
  button.classList.toggle("held", down);
}

// A key held for one arm moves the other arm only after it was released. An operator who drives keeps
// the control during the change.
export function changeArm(drives) {
  otherArm = true;
  if (drives) keptUntil = performance.now() + KEEP_MS;
}

export function letGo() {
  padInHand = "";
  keptUntil = 0;
  held.clear();
  for (const button of [...pushed.keys()]) onPad(button, false);
}

export function gamepadName() {
  const pad = gamepad();
  return pad ? pad.id.split("(")[0].trim() : "";
}

// Returns null when the gamepad in use is gone: its loss does not count as releasing the controls.
export function wish(say) {
  const motion = [0, 0, 0, 0, 0, 0, 0];
  for (const code of held) if (code in KEYS) motion[KEYS[code][0]] += KEYS[code][1];
  for (const [axis, sign] of pushed.values()) motion[axis] += sign;
  let hands = held.size > 0 || pushed.size > 0;
  const pad = gamepad();
  if (padInHand && padInHand !== nameOf(pad)) {
    padInHand = "";
    return null;
  }
  if (pad) {
    const on = fromGamepad(pad, motion);
    padInHand = on ? nameOf(pad) : "";
    hands = on || hands;
    sayOf(pad, say);
  }
  otherArm = otherArm && motion.some((value) => Math.abs(value) > DEAD_ZONE);
  if (otherArm) motion.fill(0);
  hands = hands || performance.now() < keptUntil;
  return { motion: motion.map((value) => Math.max(-1, Math.min(1, value))), hands };
}

// The gamepad in use while it is connected, otherwise the first one.
function gamepad() {
  const found = navigator.getGamepads ? [...navigator.getGamepads()] : [];
  const pads = found.filter((pad) => pad && pad.connected && pad.mapping === "standard");
  return pads.find((pad) => nameOf(pad) === padInHand) || pads[0] || null;
}

function nameOf(pad) {
  return pad ? `${pad.index} ${pad.id}` : "";
}

// The standard mapping: right shoulder is the deadman, sticks move, triggers close and open.
function fromGamepad(pad, motion) {
  if (!pad.buttons[5].pressed) return false;
  const stick = pad.axes.map(beyond);
  motion[0] -= stick[1];
  motion[1] -= stick[0];
  motion[2] -= stick[3];
  motion[5] -= stick[2];
  motion[6] += pad.buttons[7].value - pad.buttons[6].value;
  return true;
}

function sayOf(pad, say) {
  const now = new Set();
  const words = { 0: "success", 1: "failure", 2: "discard", 8: "reset", 14: "left", 15: "right", 16: "estop" };
  for (const [index, what] of Object.entries(words)) {
    if (pad.buttons[index] && pad.buttons[index].pressed) {
      now.add(what);
      if (!padSaid.has(what)) say(what);
    }
  }
  padSaid = now;
}

function beyond(position) {
  const way = Math.max(0, (Math.abs(position) - DEAD_ZONE) / (1 - DEAD_ZONE));
  return Math.sign(position) * Math.min(1, way);
}
