// What the page shows: one object, changed by chat.js and `update`; components draw it again.
import { useLayoutEffect, useState } from "./ui.js";
import { readPreference } from "./storage.js";

export const state = {
  /** Id, title and time of each conversation, latest first. */
  heads: [],
  /** The conversation that is shown. */
  conversation: null,
  /** Answers that are being written, by the id of their conversation: {conversation, message, controller}. */
  running: new Map(),
  /** What the server serves, and the name of the model that answers. */
  models: [],
  model: readPreference("model", null),
  /** null where the server answers; else a ServerError. */
  trouble: null,
  /** Values that differ from the model's own, by the names of the API. */
  options: readPreference("options", {}),
  theme: readPreference("theme", "auto"),
  /** The dialog that is open: "settings", "key" or "keyboard"; null for none. */
  dialog: null,
  /** Whether the list of conversations is open; on a phone it lies over the text. */
  isListOpen: readPreference("list", true) && !matchMedia("(width < 800px)").matches,
  /** A sentence at the bottom with maybe something to do about it: {text, action, onAction}. */
  notice: null,
  /** What a screen reader says. */
  announcement: "",
};

const listeners = new Set();
let isScheduled = false;

/** Change what is shown. */
export function update(changes = {}) {
  isScheduled = false;
  Object.assign(state, changes);
  listeners.forEach((listener) => listener());
}

/** Draw what has changed at the next frame; a page that is not seen has none. */
export function updateSoon() {
  if (isScheduled) return;
  isScheduled = true;
  const draw = () => isScheduled && update();
  if (document.hidden) setTimeout(draw, 100);
  else requestAnimationFrame(draw);
}

/** Draw a component again whenever what is shown changes. */
export function useUpdates() {
  const [, setCount] = useState(0);
  useLayoutEffect(() => {
    const listener = () => setCount((count) => count + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
}
