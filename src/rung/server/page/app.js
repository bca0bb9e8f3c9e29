// The frame of the page: the list of conversations, the bar above the text, banners, dialogs and the keyboard.
import { announce, chooseModel, enterKey, notify, startConversation, stop } from "./chat.js";
import { Composer } from "./composer.js";
import { titleOf } from "./conversation.js";
import { KeyDialog, KeyboardDialog } from "./dialogs.js";
import { focusSearch, List, toggleList } from "./list.js";
import { Settings } from "./settings.js";
import { state, update, useUpdates } from "./state.js";
import { isKept } from "./storage.js";
import { describe, Thread } from "./thread.js";
import { html, IconButton, useEffect, useLayoutEffect } from "./ui.js";

function ModelMenu() {
  const { models, model } = state;
  if (models.length < 2) return html`<h1 class="model">${model ?? "rung"}</h1>`;
  return html`<select class="model" aria-label="Model" value=${model} onChange=${(event) => chooseModel(event.target.value)}>
    ${models.map(({ id }) => html`<option value=${id} selected=${id === model}>${id}</option>`)}
  </select>`;
}

function Bar() {
  const found = state.models.find(({ id }) => id === state.model);
  return html`<header class="bar">
    <${IconButton}
      icon="menu"
      label=${state.isListOpen ? "Hide conversations" : "Show conversations"}
      aria-expanded=${state.isListOpen}
      aria-controls="list"
      onClick=${toggleList}
    />
    <div class="who">
      <${ModelMenu} />
      <p>${describe(found?.meta)}</p>
    </div>
    <${IconButton} icon="new" label="New conversation (Ctrl+Shift+O)" onClick=${startConversation} />
    <${IconButton} icon="settings" label="Settings (Ctrl+,)" onClick=${() => update({ dialog: "settings" })} />
  </header>`;
}

/** What keeps the server from answering, and what can be done. */
function Trouble() {
  const { trouble } = state;
  if (!trouble) return null;
  const isLoading = trouble.title === "Loading model";
  const title = isLoading ? "The model is loading." : trouble.title;
  const advice = isLoading ? "You may write already." : trouble.advice;
  return html`<div class=${isLoading ? "banner" : "banner bad"} role="status">
    <p><strong>${title}</strong> ${advice}</p>
    ${trouble.status === 401 && html`<button type="button" onClick=${() => update({ dialog: "key" })}>Enter the key</button>`}
  </div>`;
}

function Notice() {
  const { notice } = state;
  if (!notice) return null;
  return html`<div class="notice">
    <p>${notice.text}</p>
    ${notice.action && html`<button type="button" onClick=${notice.onAction}>${notice.action}</button>`}
  </div>`;
}

const DIALOGS = { settings: Settings, key: KeyDialog, keyboard: KeyboardDialog };

/** What keys do wherever the focus is, unless something took them for itself. */
function onKeyDown(event) {
  const isCommand = event.ctrlKey || event.metaKey;
  const pressed = [isCommand && "Ctrl", event.shiftKey && "Shift", event.key.toUpperCase()].filter(Boolean).join("+");
  const action = {
    "Ctrl+K": focusSearch,
    "Ctrl+Shift+O": startConversation,
    "Ctrl+,": () => update({ dialog: "settings" }),
    "Ctrl+/": () => update({ dialog: "keyboard" }),
    ESCAPE: onEscape,
  }[pressed];
  if (!action || event.defaultPrevented || state.dialog) return;
  if (action() !== false) event.preventDefault();
}

/** Close what lies over the text, or end the answer that is written; false where there is neither. */
function onEscape() {
  if (state.isListOpen && matchMedia("(width < 800px)").matches) return toggleList();
  if (stop()) return announce("The answer is stopped");
  return false;
}

export function App() {
  useUpdates();
  useLayoutEffect(() => {
    addEventListener("keydown", onKeyDown);
    if (!isKept) notify("This browser keeps nothing here: conversations end with this page. Export what you need.");
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
  const title = state.conversation.shown ? `${titleOf(state.conversation)} – rung` : "rung";
  useEffect(() => void (document.title = title), [title]);
  const Open = DIALOGS[state.dialog];
  const isBusy = state.running.has(state.conversation.id);
  return html`<div class=${state.isListOpen ? "page with-list" : "page"}>
    <button type="button" class="skip" onClick=${() => document.getElementById("message").focus()}>To the message</button>
    <${List} />
    <div class="shade" onClick=${toggleList}></div>
    <div class="desk">
      <${Bar} />
      <${Trouble} />
      <main aria-busy=${isBusy}>
        <${Thread} key=${state.conversation.id} conversation=${state.conversation} />
      </main>
      <${Composer} key=${`message of ${state.conversation.id}`} conversation=${state.conversation} isBusy=${isBusy} />
    </div>
    <${Notice} />
    ${Open && html`<${Open} onClose=${() => update({ dialog: null })} onKey=${enterKey} />`}
    <div class="unseen" role="status" aria-live="polite">${state.announcement}</div>
  </div>`;
}
