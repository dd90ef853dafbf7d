// Sound and vibration when the control of the robot changes hands, and when the robot holds.

const TONES = { human: [660, 880], policy: [660, 440], hold: [330, 330], stop: [220, 220, 220] };
const PULSES = { human: [60], policy: [60, 60, 60], hold: [200], stop: [300, 100, 300] };
const RATE_HZ = 22050;
const TONE_S = 0.12;
const sounds = {};
let before = "";

export function soundIsOn() {
  return localStorage.getItem("sound") !== "off";
}

export function switchSound() {
  localStorage.setItem("sound", soundIsOn() ? "off" : "on");
}

// A browser lets a page sound and vibrate only after a person has touched it.
export function signal(mood) {
  const [was, changed] = [before, mood !== before];
  before = mood;
  if (!changed || !was || !(mood in TONES) || !soundIsOn()) return;
  if (navigator.vibrate && navigator.userActivation && navigator.userActivation.hasBeenActive) navigator.vibrate(PULSES[mood]);
  sounds[mood] = sounds[mood] || new Audio(URL.createObjectURL(recording(TONES[mood])));
  sounds[mood].play().catch(() => {});  // no person yet, or no loudspeaker: the page goes on without
}

// A WAV file. (An AudioContext would do without, but opens the sound device while the page waits.)
function recording(tones) {
  const length = Math.round(TONE_S * RATE_HZ);
  const view = new DataView(new ArrayBuffer(44 + 2 * length * tones.length));
  const text = (at, word) => [...word].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, view.byteLength - 8, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);  // PCM
  view.setUint16(22, 1, true);  // mono
  view.setUint32(24, RATE_HZ, true);
  view.setUint32(28, 2 * RATE_HZ, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, view.byteLength - 44, true);
  for (let index = 0; index < length * tones.length; index += 1) {
    const [tone, at] = [tones[Math.floor(index / length)], index % length];
    const fade = Math.min(1, at / 200, (length - at) / 800);
    view.setInt16(44 + 2 * index, 6000 * fade * Math.sin((2 * Math.PI * tone * at) / RATE_HZ), true);
  }
  return new Blob([view], { type: "audio/wav" });
}
