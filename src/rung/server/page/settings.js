// The settings: the system prompt, the options of answers with what each does, colors, and the conversations as a file.
import { exportAll, importFile, setOption, setSystem, setTheme } from "./chat.js";
import { OPTIONS, textOf, valueOf } from "./options.js";
import { state } from "./state.js";
import { readPreference } from "./storage.js";
import { Dialog, html, useRef, useState } from "./ui.js";

function Option({ option }) {
  const { name, label, help } = option;
  const [text, setText] = useState(textOf(option, state.options[name]));
  const [problem, setProblem] = useState("");
  const onInput = (event) => {
    setText(event.target.value);
    try {
      setOption(name, valueOf(option, event.target.value));
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  const rest = {
    id: `option-${name}`,
    value: text,
    onInput,
    placeholder: "model's own",
    "aria-describedby": `help-${name}`,
    "aria-invalid": Boolean(problem),
  };
  return html`<div class="option">
    <label for=${rest.id}>${label}</label>
    ${option.isText ? html`<textarea rows="2" ...${rest}></textarea>` : html`<input inputmode="decimal" autocomplete="off" ...${rest} />`}
    <p id=${`help-${name}`}>${problem && html`<strong role="alert">${problem}</strong> `}${help}</p>
  </div>`;
}

function SystemPrompt() {
  const [text, setText] = useState(state.conversation.system);
  const [isDefault, setIsDefault] = useState(text === readPreference("system", ""));
  const change = (value, alsoNew) => {
    setText(value);
    setIsDefault(alsoNew);
    setSystem(value, alsoNew);
  };
  return html`<div class="option tall">
    <label for="system">System prompt</label>
    <textarea id="system" rows="4" aria-describedby="help-system" value=${text} onInput=${(event) => change(event.target.value, isDefault)}></textarea>
    <p id="help-system">What the model reads before this conversation: who it is, how it should answer.</p>
    <label class="check">
      <input type="checkbox" checked=${isDefault} onChange=${(event) => change(text, event.target.checked)} />
      New conversations begin with it, too
    </label>
  </div>`;
}

const THEMES = { auto: "As the system", light: "Light", dark: "Dark" };

function Theme() {
  return html`<fieldset class="choices">
    <legend>Colors</legend>
    ${Object.entries(THEMES).map(
      ([theme, label]) => html`<label>
        <input type="radio" name="theme" value=${theme} checked=${state.theme === theme} onChange=${() => setTheme(theme)} />
        ${label}
      </label>`,
    )}
  </fieldset>`;
}

function Conversations() {
  const chooser = useRef(null);
  const onChange = (event) => event.target.files.length && importFile(event.target.files[0]);
  return html`<p class="buttons">
    <button type="button" onClick=${exportAll}>Export all conversations</button>
    <button type="button" onClick=${() => chooser.current.click()}>Import</button>
    <input ref=${chooser} type="file" accept=".json,application/json" hidden onChange=${onChange} />
  </p>`;
}

export function Settings({ onClose }) {
  const [count, setCount] = useState(0); // draws the inputs anew when all values are reset
  const reset = () => {
    for (const { name } of OPTIONS) setOption(name, null);
    setCount(count + 1);
  };
  return html`<${Dialog} title="Settings" class="sheet" onClose=${onClose}>
    <h3>This conversation</h3>
    <${SystemPrompt} />
    <h3>Answers</h3>
    <p class="quiet">From the next answer on, in all conversations.</p>
    <div key=${count}>${OPTIONS.map((option) => html`<${Option} key=${option.name} option=${option} />`)}</div>
    <p class="buttons"><button type="button" onClick=${reset}>Empty all fields</button></p>
    <h3>This page</h3>
    <${Theme} />
    <${Conversations} />
    <p class="quiet">Conversations and settings are kept in this browser only.</p>
  <//>`;
}
