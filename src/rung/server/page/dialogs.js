// The dialogs that are not settings: the server's key, and what the keyboard does.
import { Dialog, html, useRef } from "./ui.js";

export function KeyDialog({ onClose, onKey }) {
  const key = useRef(null);
  const remembered = useRef(null);
  const submit = (event) => {
    event.preventDefault();
    if (key.current.value.trim()) onKey(key.current.value.trim(), remembered.current.checked);
  };
  return html`<${Dialog} title="The server asks for a key" onClose=${onClose}>
    <form onSubmit=${submit}>
      <p>It printed one when it started, or somebody chose it with --key. Ask whoever runs the server.</p>
      <p>
        <label for="key">Key</label>
        <input id="key" ref=${key} type="password" autocomplete="off" spellcheck="false" autofocus />
      </p>
      <p>
        <label class="check"><input type="checkbox" ref=${remembered} /> Remember it in this browser</label>
      </p>
      <p class="buttons"><button type="submit" class="main">Use this key</button></p>
    </form>
  <//>`;
}

const KEYS = [
  ["Enter", "send the message"],
  ["Shift + Enter", "a new line"],
  ["Esc", "stop the answer; close what is open"],
  ["Ctrl + K", "search conversations"],
  ["Ctrl + Shift + O", "new conversation"],
  ["Ctrl + ,", "settings"],
  ["Ctrl + /", "this list"],
];

export function KeyboardDialog({ onClose }) {
  return html`<${Dialog} title="Keyboard" onClose=${onClose}>
    <dl class="keys">
      ${KEYS.map(([keys, does]) => html`<dt>${keys.split(" + ").map((key) => html`<kbd>${key}</kbd>`)}</dt><dd>${does}</dd>`)}
    </dl>
    <p class="quiet">On a Mac it is Cmd instead of Ctrl.</p>
  <//>`;
}
