// The page: shows what the console sends, and sends the operator's input.

import { changeArm, gamepadName, isBrowsers, letGo, onKey, onPad, wish } from "/hands.js";
import { connectCrops, showCrops } from "/crop.js";
import { closeFilm, connectFilms, showEpisodes } from "/films.js";
import { signal, soundIsOn, switchSound } from "/signals.js";

const BEAT_MS = 25;
const TAKE_FIRST = "Take the controls first.";
const YES = { ack: "I have removed the cause", reset: "End the guard's stop", arm: "Arm the guard" };
const STOP_ANSWER_MS = 4000;  // the console itself waits 3 s for the guard's
const STOPPING = ["stop", "Stopping ...", "not confirmed yet: keep a hand on the arm's own stop"];
const MARK_MS = 100;  // while a button of marks is held
const STALE_MS = 2000;  // without a state, after which the shown one is no longer valid
const $ = (id) => document.getElementById(id);
let socket = null;
let token = tokenOfAddress() || localStorage.getItem("token") || "";
let state = {};
let wanted = false;  // this page wants to be the operator
let wasOn = false;
let reported = false;
let unanswered = 0;  // the timer of a stop
const HOLD = ["estop", "release", "pause", "resume"];
let hold = "";  // why the robot holds, by the actor's last report
let aboutHold = false;  // the shown answer is about a hold, and is removed when the hold changes
let stopping = false;  // this page requested a stop that is not answered yet
let runs = false;  // an episode runs
let session = "";  // what a person records here; empty in a training
let arm = "left";  // of two arms, the one that this page drives; the other arm does not move
let shownToken = "";  // of the console whose run this page shows
let reopening = 0;  // the timer of the next attempt to connect
let stateAt = 0;  // when the last state arrived

// ---- the door ----

// The printed address carries the token in its fragment, which no server receives. The fragment is removed.
function tokenOfAddress() {
  const given = /^#[\w-]{43,}$/.test(location.hash) ? location.hash.slice(1) : "";
  if (given) history.replaceState(null, "", location.pathname);
  return given;
}
window.addEventListener("hashchange", () => {
  token = tokenOfAddress() || token;
  if (socket && socket.readyState === WebSocket.OPEN) return;
  open();
});

$("door").addEventListener("submit", (event) => {
  event.preventDefault();
  const word = $("token").value.trim();
  $("token").value = "";
  if (!word) return;  // submitted twice
  if (/^\d{4} ?\d{4}$/.test(word)) open({ pair: word.replace(" ", "") });
  else {
    token = word;
    open();
  }
});

function open(first = { token }) {
  clearTimeout(reopening);
  if (socket) {  // two would answer each other: one page is served by one socket
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
  }
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/socket`);
  socket.binaryType = "arraybuffer";
  let entered = false;
  socket.onopen = () => socket.send(JSON.stringify(first));
  socket.onmessage = (event) => {
    if (!entered) {
      entered = true;
      if (first.pair) token = JSON.parse(event.data).token;
      localStorage.setItem("token", token);
      if (shownToken && shownToken !== token) return location.reload();  // another run: nothing of the last one stays
      shownToken = token;
      stateAt = performance.now();
      $("door").hidden = true;
      $("desk").hidden = false;
      $("refused").textContent = "";
    }
    typeof event.data === "string" ? heard(JSON.parse(event.data)) : see(event.data);
  };
  socket.onclose = (event) => {
    wanted = false;
    if (stopping) showAnswer({ what: "estop", done: false, text: "The connection to the console was lost." });
    letGo();
    if (event.code === 4401) {
      const kept = localStorage.getItem("token");
      if (kept && kept !== token) {  // an address with an old token does not lock this page out
        token = kept;
        open();
        return;
      }
      localStorage.removeItem("token");
      $("desk").hidden = true;
      $("door").hidden = false;
      $("refused").textContent = first.pair
        ? "This code is wrong, was used before, or has expired. The console's page shows a new one under Phone."
        : "This is not the token of this console. It changes at every start.";
      return;
    }
    show("gone", "Not connected", entered || token ? "reconnecting" : "");
    for (const button of document.querySelectorAll("#controls button, #hands button")) button.disabled = true;
    if (token) reopening = setTimeout(open, 1000);
  };
}

function send(frame) {
  if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(frame));
}

function say(what) {
  send({ type: "say", what });
  if (what === "estop") sayStop();
  else $("answer").textContent = `${what} ...`;
}

function sayStop() {
  if (!socket || socket.readyState !== WebSocket.OPEN) {
    showAnswer({ what: "estop", done: false, text: "This page is not connected." });
    return;
  }
  stopping = true;
  clearTimeout(unanswered);
  unanswered = setTimeout(showAnswer, STOP_ANSWER_MS, { what: "estop", done: false, text: "The console does not answer." });
  $("answer").textContent = "stopping";
  show(...STOPPING);
}

// A key does nothing while its button is hidden.
function sayByKey(what) {
  if (what === "left" || what === "right") return choose(what);
  const button = document.querySelector(`[data-say=${what}]`);
  if (!button || !button.closest("[hidden]")) say(what);
}

// ---- messages from the console ----

function heard(message) {
  if (message.type === "state") showState(message);
  if (message.type === "progress") showProgress(message);
  if (message.type === "answer") showAnswer(message);
}

// An unconfirmed stop stays on the page until a stop is confirmed.
function showAnswer(message) {
  $("answer").textContent = message.text;
  aboutHold = HOLD.includes(message.what);
  if (message.what !== "estop") return;
  clearTimeout(unanswered);
  stopping = false;
  $("alarm").hidden = message.done;
  $("alarm").textContent = message.done ? "" : `NOT STOPPED: use the arm's own stop. ${message.text}`;
}

function show(mood, who, why) {
  document.body.dataset.mood = mood;
  signal(mood);
  $("who").textContent = who;
  $("why").textContent = why;
  document.title = `${who} · serl`;
}

function showState(now) {
  state = now;
  stateAt = performance.now();
  const reason = now.stopped || now.paused;
  if (reason !== hold && aboutHold) $("answer").textContent = "";
  hold = reason;
  const still = now.still ? ", waiting for the learner" : "";
  const episode = session ? "" : `episode ${now.episode}, `;
  const where = now.episode >= 0 ? `${episode}step ${now.step + 1}${still}` : "";
  if (stopping) show(...STOPPING);
  else if (!now.fresh && now.over) show("off", "Finished", `the ${session ? "recording" : "training"} is complete`);
  else if (!now.fresh) show("off", "Actor not reachable", "it sends no messages");
  else if (now.stopped && !$("alarm").hidden) show("stop", "The arm may move", "the actor has stopped, but the arm's guard has not confirmed a stop");
  else if (now.stopped) show("stop", "Stopped", `${now.stopped.replace(/^stopped /, "")}. Release the actor when it is safe to move.`);
  else if (now.paused) show("hold", "Holding", `${now.paused}. Go on when it may move again.`);
  else if (now.silent) show("hold", "Holding", `${now.silent}; release the keys or the device, then take over again`);
  else if (drives(now)) show("human", now.arms === 2 ? `You drive the ${arm} arm` : "You drive", where);
  else if (now.driver === "human" && now.owner === "a simulated human") show("human", "A simulated human corrects", where);
  else if (now.driver === "human") show("human", now.owner ? `${capital(now.owner)} drives` : "No operator input", where);
  else if (now.driver === "script" && session) show("hold", "Holding", session === "reward" ? "No operator input: label the picture, or drive." : "No operator input: drive, or label the episode.");
  else if (now.driver === "policy") show("policy", "The policy drives", where);
  else if (now.driver === "script") show("policy", "Resetting the scene", where);
  else if (session) show("off", "Ready", ready(now));
  else show("off", "Between two episodes", now.last ? `last episode: ${now.last}` : "");
  showFeel(now);
  const mine = now.lease === "you";
  showArms(now, mine);
  showActors(now, mine);
  runs = now.fresh && Boolean(now.driver) && now.step >= 0;
  if (runs && !$("film").hidden && now.owner) closeFilm();
  if (now.lease === "other") wanted = false;
  if (wanted && now.lease === "free" && !document.hidden) send({ type: "take" });  // it expired
  $("lease").disabled = now.lease === "other" || !now.fresh;
  label($("lease"), mine ? "Give the controls back" : now.lease === "other" ? "Another page has the controls" : "Take the controls", "T");
  $("lease").hidden = Boolean(now.stopped || now.paused) && mine;
  $("go").hidden = !(now.stopped || now.paused);
  label($("go"), now.stopped ? "Release the actor" : "Go on", "G");
  for (const button of document.querySelectorAll("#controls [data-say], #pad button, #go")) button.disabled = !mine;
  showQuestion(now, mine);
  $("pause").hidden = Boolean(now.stopped || now.paused);
  $("controls").hidden = now.over && !now.fresh;
  if (!mine && !$("go").hidden) $("answer").textContent = TAKE_FIRST;
  else if ($("answer").textContent === TAKE_FIRST) $("answer").textContent = "";
}

function drives(now) {
  return now.driver === "human" && now.owner === "the console" && now.lease === "you";
}

function showArms(now, mine) {
  $("arms").hidden = $("arms-says").hidden = now.arms !== 2;
  for (const button of document.querySelectorAll("#arms button")) {
    button.disabled = !mine;
    button.setAttribute("aria-pressed", button.dataset.arm === arm);
  }
}

function choose(name) {
  if (state.arms !== 2 || state.lease !== "you" || name === arm) return;
  arm = name;
  changeArm(document.body.dataset.mood === "human" && drives(state));
  showState(state);
}

// Actors beside each other: the one that is driven is shown large, the others small.
function showActors(now, mine) {
  const actors = now.actors || [];
  $("actors").hidden = !actors.length;
  $("stop-says").textContent = actors.length ? "STOP ALL" : "STOP";
  for (const figure of document.querySelectorAll("#views figure[data-actor]")) {
    if (figure.dataset.actor !== now.actor) figure.remove();
  }
  for (const [place, actor] of actors.entries()) {
    const card = cardOf(actor.name);
    card.style.order = place;  // a card may be as old as its first picture
    const here = actor.name === now.actor;
    card.className = here ? "here" : "";
    card.disabled = here || !mine;
    card.querySelector("img").hidden = here;
    card.dataset.mood = moodOf(actor);
    card.querySelector("small").textContent = wordOf(actor);
  }
}

function cardOf(name) {
  const found = document.querySelector(`#actors [data-actor="${CSS.escape(name)}"]`);
  if (found) return found;
  const [card, view, title, state] = ["button", "img", "b", "small"].map((tag) => document.createElement(tag));
  card.dataset.actor = name;
  view.alt = `picture of ${name}`;
  title.textContent = name;
  card.append(view, title, state);
  card.addEventListener("click", () => {
    card.blur();
    letGo();
    send({ type: "select", actor: name });
  });
  $("actors").append(card);
  return card;
}

function moodOf(actor) {
  if (!actor.fresh) return "off";
  if (actor.stopped) return "stop";
  if (actor.paused || actor.silent || actor.question) return "hold";
  return actor.driver === "human" ? "human" : actor.driver ? "policy" : "off";
}

function wordOf(actor) {
  if (!actor.fresh) return "not reachable";
  if (actor.question) return "the guard asks you";
  if (actor.stopped) return "stopped";
  if (actor.paused || actor.silent) return `holds: ${actor.paused || actor.silent}`;
  const words = { policy: "the policy drives", human: `${actor.owner || "a person"} drives`, script: "resets the scene" };
  return words[actor.driver] || "between two episodes";
}

// Force, gripper and box; of two arms the gripper and box of the driven one. Unknown values are left out.
const NEAR_M = 0.02;
function showFeel(now) {
  const known = (value) => value !== null && value !== undefined;
  now = { ...now, ...(now.by_arm || {})[arm] };
  $("feel").hidden = !now.fresh || !(known(now.force_n) || known(now.box_m));
  $("force").closest("label").hidden = !known(now.force_n);
  if (known(now.force_n)) {
    Object.assign($("force"), { max: now.stop_force_n, low: now.stop_force_n / 3, high: now.stop_force_n / 2, optimum: 0, value: now.force_n });
    $("force-says").textContent = `${now.force_n.toFixed(0)} of ${now.stop_force_n} N`;
  }
  $("grip").hidden = !known(now.gripper);
  $("gripper").value = now.gripper || 0;
  $("box").textContent = known(now.box_m) ? (now.box_m > 0 ? `edge of the box ${Math.round(1000 * now.box_m)} mm` : "at the edge of the box") : "";
  $("box").className = known(now.box_m) && now.box_m < NEAR_M ? "near" : "";
}

// The question of the arm's guard. It has no key, so that no accidental press lets an arm move.
function showQuestion(now, mine) {
  $("guard").hidden = !now.question;
  if (!now.question) return;
  const waits = now.not_now ? ` The guard waits: ${now.not_now}.` : "";
  $("guard-says").textContent = `${capital(now.question.replace(/: Enter [^:]*$/, ""))}.${waits}`;
  $("yes").textContent = YES[now.yes];
  $("yes").dataset.question = now.question;  // the answer is to what is read here
  $("yes").disabled = !mine || Boolean(now.not_now);
}

function ready(now) {
  const last = now.last ? `Last episode: ${now.last}. ` : "";
  if (now.lease !== "you") return `${last}Take the controls to begin.`;
  return `${last}${wasOn ? "Release all keys, then drive" : "Drive"} to begin an episode.`;
}

function label(button, text, key) {
  if (button.dataset.text === text) return;
  button.dataset.text = text;
  button.textContent = `${text} `;
  const hint = document.createElement("kbd");
  hint.textContent = key;
  button.append(hint);
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function percent(share) {
  return share === null ? "-" : `${Math.round(100 * share)} %`;
}

function clock(seconds) {
  if (seconds === null) return "-";
  const s = Math.round(seconds);
  const rest = `${String(Math.floor(s / 60) % 60).padStart(s >= 3600 ? 2 : 1, "0")}:${String(s % 60).padStart(2, "0")}`;
  return s >= 3600 ? `${Math.floor(s / 3600)}:${rest}` : rest;
}

function rate(id, pair) {
  const [wins, tries] = pair;
  const share = tries ? wins / tries : null;
  $(id).replaceChildren();
  $(id).append(percent(share));
  const of = document.createElement("small");
  of.textContent = tries ? ` ${wins} of ${tries}` : "";
  $(id).append(of);
  $(`bar-${id}`).style.width = `${100 * (share || 0)}%`;
}

function showProgress(now) {
  $("task").textContent = now.task;
  $("run").textContent = now.run;
  $("advice").textContent = now.advice;
  showCrops(now.crops, state.lease === "you");
  if (now.session) {
    showSession(now);
    return;
  }
  const whole = (number) => (number === null ? "-" : number.toLocaleString("en").replaceAll(",", " "));
  $("steps").textContent = `${whole(now.steps)} of ${whole(now.total_steps)}`;
  $("bar-steps").style.width = `${(100 * (now.steps || 0)) / Math.max(1, now.total_steps || 1)}%`;
  rate("alone", now.alone);
  rate("assisted", now.assisted);
  $("human").textContent = percent(now.human_share);
  $("human").classList.toggle("over", now.human_share > now.budget_share);
  $("bar-human").style.width = `${100 * (now.human_share || 0)}%`;
  $("takeovers").textContent = `in ${now.takeovers} takeover${now.takeovers === 1 ? "" : "s"}; budget now ${percent(now.budget_share)}`;
  $("recent").replaceChildren(...now.recent.map(mark));
  $("cycle").textContent = now.cycle_time_s === null ? "-" : `${now.cycle_time_s.toFixed(1)} s`;
  for (const name of ["learner", "weights", "link", "disk"]) {
    $(name).textContent = now[name][1];
    $(name).className = now[name][0] ? "" : "bad";
  }
  const left = now.left_s ? `, about ${clock(now.left_s)} left` : "";
  $("time").textContent = `${clock(now.elapsed_s)}${left}`;
  if (now.report && !reported) showReport();
}

function mark(kind) {
  const square = document.createElement("i");
  square.className = kind;
  square.title = kind;
  return square;
}

function showSession(now) {
  session = now.session;
  $("numbers").hidden = true;
  $("session").hidden = false;
  $("marks").hidden = session !== "reward";
  $("undo").hidden = session !== "demonstrations";
  $("pad-says").hidden = session === "reward";
  for (const what of ["success", "failure", "discard", "reward", "penalty"]) {
    document.querySelector(`[data-say=${what}]`).hidden = session === "reward";
  }
  showEpisodes(now.episodes || [], runs);
  $("order").hidden = !now.recent.length;
  $("taken").replaceChildren(...now.recent.map(mark));
  $("room").textContent = now.disk[1];
  $("room").className = now.disk[0] ? "" : "bad";
  $("counts").replaceChildren(...now.counts.map(([name, have, wanted]) => count(name, have, wanted)));
}

function count(name, have, wanted) {
  const tile = document.createElement("div");
  tile.className = wanted === null ? "tile" : "tile wide wanted";
  tile.dataset.name = name;
  const [title, number] = [document.createElement("span"), document.createElement("strong")];
  title.textContent = name;
  number.textContent = have;
  tile.append(title, number);
  if (wanted !== null) {
    const [of, bar, done] = ["small", "div", "i"].map((tag) => document.createElement(tag));
    of.textContent = ` of ${wanted}`;
    number.append(of);
    bar.className = "bar good";
    done.style.width = `${Math.min(100, (100 * have) / wanted)}%`;
    bar.append(done);
    tile.append(bar);
  }
  return tile;
}

// Each opening of the panel makes a new pairing code; the previous one becomes invalid.
async function showPhone() {
  $("phone-panel").hidden = !$("phone-panel").hidden;
  if ($("phone-panel").hidden) return;
  $("phone-says").textContent = "";
  const answer = await ask("/phone");
  $("qr").hidden = !answer.ok;
  if (!answer.ok) {
    $("phone-says").textContent = "To open this page on a phone, start the console with --console.host ADDRESS, this machine's address in the lab network.";
    return;
  }
  const { url, code, svg } = await answer.json();
  $("qr").src = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  $("qr").onload = () => URL.revokeObjectURL($("qr").src);
  $("phone-says").textContent = `Scan this, or open ${url} and type ${code.slice(0, 4)} ${code.slice(4)} within 10 minutes. The code works once.`;
}

function ask(path, method = "GET") {
  return fetch(path, { method, headers: { Authorization: `Bearer ${token}` } });
}

async function showReport() {
  reported = true;
  const answer = await ask("/report", "POST");
  if (!answer.ok) return;
  $("after").hidden = false;
  $("report").src = "/report";
}

// ---- pictures: a byte of length, the camera's name, a JPEG ----
// Of several actors, the names are ACTOR/CAMERA for the driven one and @ACTOR for the others.

function see(buffer) {
  const bytes = new Uint8Array(buffer);
  const name = new TextDecoder().decode(bytes.subarray(1, 1 + bytes[0]));
  const other = name.startsWith("@");
  const view = other
    ? cardOf(name.slice(1)).querySelector("img")
    : document.querySelector(`#views img[alt="${CSS.escape(name)}"]`) || newView(name);
  const url = URL.createObjectURL(new Blob([bytes.subarray(1 + bytes[0])], { type: "image/jpeg" }));
  view.onload = () => {
    URL.revokeObjectURL(url);
    if (!other) fitView(view);
  };
  view.src = url;
}

function newView(name) {
  $("blind").hidden = true;
  const [figure, view, caption] = ["figure", "img", "figcaption"].map((tag) => document.createElement(tag));
  view.alt = caption.textContent = figure.dataset.camera = name;
  if (name.includes("/")) [figure.dataset.actor, figure.dataset.camera] = name.split("/");
  figure.append(view, caption);
  figure.addEventListener("click", () => figure.classList.contains("cropping") || enlarge(figure));
  $("views").insertBefore(figure, $("film"));
  return view;
}

// Pictures share a row by their aspect ratios, so that they are equally high, whole and without bars.
function fitView(view) {
  const aspect = view.naturalWidth / view.naturalHeight;
  const figure = view.closest("figure");
  if (figure.dataset.aspect === String(aspect)) return;
  figure.dataset.aspect = aspect;
  figure.style.setProperty("--aspect", aspect);
  fitRow();
}

function fitRow() {
  const shown = [...document.querySelectorAll("#views figure")].filter((figure) => figure.offsetParent);
  const sum = shown.reduce((total, figure) => total + Number(figure.dataset.aspect || 1), 0);
  $("views").style.setProperty("--aspects", sum);
}

// A click shows one picture alone, as large as there is room; another one shows all again.
function enlarge(figure) {
  const others = [...document.querySelectorAll("#views figure[data-camera]")].filter((each) => each !== figure);
  const alone = others.some((each) => !each.hidden);
  for (const each of others) each.hidden = alone;
  fitRow();
}

// ---- operator input: beats while this page has the controls, and none while it is hidden ----

function beat() {
  if (state.lease !== "you" || !wanted || document.hidden) return;
  const now = wish(sayByKey);
  if (now === null) {
    away();
    $("answer").textContent = "the gamepad was disconnected: the robot holds; take over to continue";
    return;
  }
  wasOn = now.hands;
  const rest = now.motion.map(() => 0);
  const motion = state.arms !== 2 ? now.motion : arm === "left" ? [...now.motion, ...rest] : [...rest, ...now.motion];
  send({ type: "drive", motion, hands: now.hands });
  const [x, y] = [now.motion[1], now.motion[0]];
  const size = now.hands ? Math.max(...now.motion.map(Math.abs), 0.04) : 0;
  $("wish").style.setProperty("--from", `${50 - 50 * size}%`);
  $("wish").style.setProperty("--to", `${50 + 50 * size}%`);
}
setInterval(beat, BEAT_MS);
setInterval(() => {
  const silent = socket && socket.readyState === WebSocket.OPEN && performance.now() - stateAt > STALE_MS;
  if (silent && !stopping && !$("desk").hidden) show("gone", "Not connected", "the console sends nothing");
  const name = gamepadName();
  $("gamepad").textContent = name ? `${name} is connected.` : "";
}, 1000);

function lease() {
  if (state.lease === "other") return;  // or it would be taken once the other page gives it up
  wanted = state.lease !== "you";
  letGo();
  send({ type: wanted ? "take" : "give" });
}

function go() {
  say(state.stopped ? "release" : "resume");
}

// A page that loses the focus or is hidden sends no more beats, so that the robot holds.
function away() {
  if (state.lease === "you" && !wasOn) send({ type: "give" });
  wanted = false;
  wasOn = false;
  letGo();
}
window.addEventListener("blur", away);
document.addEventListener("visibilitychange", () => document.hidden && away());

for (const kind of ["keydown", "keyup"]) {
  window.addEventListener(kind, (event) => {
    if ($("desk").hidden) return;
    const hit = kind === "keydown" && !event.repeat && !isBrowsers(event);
    if (hit && event.code === "KeyT") lease();
    if (hit && event.code === "KeyG" && !$("go").hidden) go();
    onKey(event, sayByKey);
    if (!event.repeat) beat();  // at once, not with the next beat
  });
}
for (const button of document.querySelectorAll("#controls [data-say]")) {
  const repeats = button.closest("#marks") !== null;
  let repeating = 0;
  button.addEventListener("click", (event) => {
    button.blur();
    if (!repeats || event.detail === 0) say(button.dataset.say);
  });
  if (!repeats) continue;
  button.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;  // a menu may take the release
    button.setPointerCapture(event.pointerId);
    clearInterval(repeating);
    say(button.dataset.say);
    repeating = setInterval(() => say(button.dataset.say), MARK_MS);
  });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
    button.addEventListener(end, () => clearInterval(repeating));
  }
}
for (const button of document.querySelectorAll("#pad button")) {
  button.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;  // a menu may take the release
    button.setPointerCapture(event.pointerId);
    onPad(button, true);
    beat();
  });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
    button.addEventListener(end, () => onPad(button, false));
  }
}
for (const button of document.querySelectorAll("#arms button")) {
  button.addEventListener("pointerdown", () => choose(button.dataset.arm));
  button.addEventListener("click", () => { button.blur(); choose(button.dataset.arm); });
}
$("lease").addEventListener("click", () => { $("lease").blur(); lease(); });
$("go").addEventListener("click", () => { $("go").blur(); go(); });
$("yes").addEventListener("click", () => { $("yes").blur(); send({ type: "yes", question: $("yes").dataset.question }); });
function labelSound() {
  $("sound").textContent = soundIsOn() ? "Sound on" : "Sound off";
  $("sound").setAttribute("aria-pressed", soundIsOn());
}
labelSound();
$("sound").addEventListener("click", () => { $("sound").blur(); switchSound(); labelSound(); });
$("phone").addEventListener("click", () => { $("phone").blur(); showPhone(); });
$("estop").addEventListener("click", () => { $("estop").blur(); say("estop"); });

window.addEventListener("resize", fitRow);
connectCrops(send);
connectFilms({ ask, send, fit: fitRow });
$("film-view").addEventListener("click", closeFilm);
$("film-view").addEventListener("load", () => fitView($("film-view")));
if (token) open();
