// Films of demonstrations: their thumbnails, and a player beside the live pictures.

const PERIOD_MS = 100;
const WORDS = { kept: "kept", failures: "a failure, not kept", undone: "discarded" };
const $ = (id) => document.getElementById(id);
const thumbnails = new Map();  // object URLs by episode; "" while one is fetched
let page = null;  // functions of the page: ask, send, fit
let known = null;
let episodes = [];
let shown = "";
let pictures = [];
let timer = 0;

export function connectFilms(console_) {
  page = console_;
  $("film-judge").addEventListener("click", (event) => {
    event.stopPropagation();
    const now = episodes.find((each) => each.name === shown);
    if (!now) return;
    page.send({ type: "judge", episode: now.name, keep: now.place === "undone" });
    if (now.place === "kept") closeFilm();
  });
  $("film-close").addEventListener("click", (event) => { event.stopPropagation(); closeFilm(); });
}

// A new episode's film is shown by itself, unless the next episode has begun by then.
export function showEpisodes(now, runs) {
  if (JSON.stringify(now) === JSON.stringify(episodes) && known !== null) return;
  episodes = now;
  const filmed = now.filter((each) => each.film);
  $("films").hidden = !filmed.length;
  const before = $("strip").childElementCount;
  $("strip").replaceChildren(...filmed.map(thumbnail));
  if (filmed.length !== before) $("strip").scrollLeft = $("strip").scrollWidth;
  const last = filmed[filmed.length - 1];
  if (known !== null && last && !known.has(last.name) && !runs) play(last.name);
  known = new Set(filmed.map((each) => each.name));
  if (shown) describe();
}

export function closeFilm() {
  clearInterval(timer);
  shown = "";
  for (const url of pictures) URL.revokeObjectURL(url);
  pictures = [];
  $("film").hidden = true;
  page.fit();
}

function thumbnail(episode) {
  const button = document.querySelector(`#strip [data-name="${episode.name}"]`) || document.createElement("button");
  if (!button.dataset.name) {
    button.dataset.name = episode.name;
    button.append(document.createElement("img"));
    button.addEventListener("click", () => { button.blur(); play(episode.name); });
    fetchThumbnail(episode.name, button.firstChild);
  }
  button.className = episode.place;
  button.firstChild.alt = `episode ${episode.name}: ${WORDS[episode.place]}`;
  return button;
}

async function fetchThumbnail(name, image) {
  const answer = await page.ask(`/film/${name}/last`);
  if (!answer.ok) return;
  if (!thumbnails.has(name)) thumbnails.set(name, URL.createObjectURL(await answer.blob()));
  image.src = thumbnails.get(name);
}

async function play(name) {
  const answer = await page.ask(`/film/${name}`);
  if (!answer.ok) return;
  const film = await answer.arrayBuffer();
  closeFilm();
  shown = name;
  pictures = split(film).map((jpeg) => URL.createObjectURL(new Blob([jpeg], { type: "image/jpeg" })));
  if (!pictures.length) return;
  $("film").hidden = false;
  describe();
  let index = 0;
  const next = () => {
    $("film-view").src = pictures[Math.min(index, pictures.length - 1)];
    index = (index + 1) % (pictures.length + 10);  // the last one stays for a second
  };
  next();
  timer = setInterval(next, PERIOD_MS);
  page.fit();
}

// Each picture lies behind its length in 4 bytes.
function split(film) {
  const [view, found] = [new DataView(film), []];
  for (let at = 0; at + 4 <= film.byteLength; ) {
    const length = view.getUint32(at);
    found.push(film.slice(at + 4, at + 4 + length));
    at += 4 + length;
  }
  return found;
}

function describe() {
  const now = episodes.find((each) => each.name === shown);
  if (!now) return;
  $("film-says").textContent = `film: ${WORDS[now.place]}`;
  $("film-judge").hidden = now.place === "failures";
  $("film-judge").textContent = now.place === "undone" ? "Bring back" : "Discard";
  $("film-close").textContent = now.place === "kept" ? "Keep" : "Close";
}
