// The messages of a conversation, with what each answer cost.
import { answerAgain, edit, notify, showVersion } from "./chat.js";
import { shownPath, versions } from "./conversation.js";
import { copy, Markdown } from "./markdown.js";
import { state, update } from "./state.js";
import { html, Icon, IconButton, useLayoutEffect, useRef, useState } from "./ui.js";

const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
const seconds = (value) => `${number(value, value < 10 ? 1 : 0)} s`;
const rate = (value) => `${number(value, value < 100 ? 1 : 0)} tokens/s`;

/** Return bytes in words; a GB is 2^30 bytes. */
export function size(bytes) {
  if (bytes >= 2 ** 30) return `${number(bytes / 2 ** 30, 1)} GB`;
  return bytes >= 2 ** 20 ? `${number(bytes / 2 ** 20)} MB` : `${number(Math.max(bytes / 1024, 0.1), 1)} kB`;
}

/** Return in one line where and how a model runs. */
export function describe(meta) {
  if (!meta) return "";
  const format = meta.format === "stored" ? "as stored" : meta.format;
  const context = meta.n_ctx && `context ${number(meta.n_ctx)}`;
  return [meta.devices?.join(" + "), format, context].filter(Boolean).join(" · ");
}

/** Return tokens per second: as the server measured them, else as they came here. */
function rateOf({ rung, tokens, pieces, writeSeconds }) {
  const measured = rung?.measured?.decode_tokens_per_second;
  if (measured) return measured;
  const steps = (tokens ?? pieces ?? 0) - 1;
  return steps > 0 && writeSeconds > 0 ? steps / writeSeconds : 0;
}

/** Return what else is known of an answer: pairs of a term and its words. */
function factsOf({ model, result }) {
  const { rung, promptTokens, cachedTokens } = result;
  const { predicted = {}, measured = {} } = rung ?? {};
  const predictedAs = (value, words) => (value ? ` (predicted ${words(value)})` : "");
  return [
    ["Model", model],
    ["Runs on", rung && [rung.devices?.join(" + ") ?? rung.device, rung.format].filter(Boolean).join(" · ")],
    ["Memory", measured.memory_bytes && size(measured.memory_bytes) + predictedAs(predicted.memory_bytes, size)],
    [
      "Speed",
      measured.decode_tokens_per_second &&
        rate(measured.decode_tokens_per_second) + predictedAs(predicted.decode_tokens_per_second, rate),
    ],
    [
      "Prompt",
      promptTokens && count(promptTokens, "token") + (cachedTokens ? `, of which ${number(cachedTokens)} were known` : ""),
    ],
  ].filter(([, words]) => words);
}

/** What an answer cost, in one line; the rest unfolds. */
function Cost({ message }) {
  const { result } = message;
  if (!result?.firstSeconds) return null;
  const speed = rateOf(result);
  const tokens = result.tokens ?? result.pieces;
  const line = [count(tokens, "token"), speed && rate(speed), `first after ${seconds(result.firstSeconds)}`];
  const memory = result.rung?.measured?.memory_bytes;
  if (memory) line.push(size(memory));
  return html`<details class="cost">
    <summary>${line.filter(Boolean).join(" · ")}</summary>
    <dl>
      ${factsOf(message).map(([term, words]) => html`<dt>${term}</dt><dd>${words}</dd>`)}
    </dl>
  </details>`;
}

/** Say what stepped down while an answer was written. */
function StepsDown({ result }) {
  const steps = result?.rung?.steps ?? [];
  return steps.map(
    (step) => html`<p class="aside warn">${step.device ?? ""} ${step.op ?? ""}: ${step.rung} → ${step.to}. ${step.reason}</p>`,
  );
}

function Versions({ conversation, message, isBusy }) {
  const all = versions(conversation, message);
  if (all.length < 2) return null;
  const index = all.indexOf(message);
  const go = (step) => () => showVersion(message, step);
  return html`<span class="versions" role="group" aria-label="Versions">
    <${IconButton} icon="previous" label="Version before" disabled=${isBusy || !index} onClick=${go(-1)} />
    <span>${index + 1}/${all.length}</span>
    <${IconButton} icon="next" label="Version after" disabled=${isBusy || index === all.length - 1} onClick=${go(1)} />
  </span>`;
}

async function copyMessage(message) {
  notify((await copy(message.content)) ? "Copied." : "The browser did not allow to copy.");
}

export function Files({ files, onRemove }) {
  if (!files?.length) return null;
  return html`<ul class="files" aria-label="Attached files">
    ${files.map(
      (file, index) => html`<li key=${index}>
        <details>
          <summary>${file.name} <small>${size(file.text.length)}</small></summary>
          <pre tabindex="0">${file.text}</pre>
        </details>
        ${onRemove && html`<${IconButton} icon="close" label=${`Remove ${file.name}`} onClick=${() => onRemove(index)} />`}
      </li>`,
    )}
  </ul>`;
}

function Editor({ message, onDone }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    const area = place.current;
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }, []);
  const submit = (event) => {
    event.preventDefault();
    const text = place.current.value.trim();
    if (!text && !message.files?.length) return;
    onDone();
    edit(message, text);
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      onDone();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  return html`<form class="editor" onSubmit=${submit}>
    <textarea
      ref=${place}
      aria-label="Edit the message"
      rows=${Math.min(12, message.content.split("\n").length + 1)}
      value=${message.content}
      onKeyDown=${onKeyDown}
    ></textarea>
    <p>
      <button type="button" onClick=${onDone}>Cancel</button>
      <button type="submit" class="main">Send</button>
    </p>
  </form>`;
}

function UserTurn({ conversation, message, isBusy }) {
  const [isEdited, setIsEdited] = useState(false);
  if (isEdited) return html`<li class="turn user"><${Editor} message=${message} onDone=${() => setIsEdited(false)} /></li>`;
  return html`<li class="turn user">
    <h2 class="unseen">You</h2>
    <${Files} files=${message.files} />
    ${message.content && html`<p class="said">${message.content}</p>`}
    <div class="actions">
      <${Versions} conversation=${conversation} message=${message} isBusy=${isBusy} />
      <${IconButton} icon="edit" label="Edit" disabled=${isBusy} onClick=${() => setIsEdited(true)} />
      <${IconButton} icon="copy" label="Copy" onClick=${() => copyMessage(message)} />
    </div>
  </li>`;
}

/** What is said before the first word of an answer. */
function Waiting({ message }) {
  const { ahead } = message;
  const words = ahead ? `${count(ahead, "answer")} before yours` : "Reading";
  return html`<p class="aside waiting">${words}</p>`;
}

function Failure({ message, isBusy }) {
  const { error } = message;
  return html`<div class="aside bad">
    <p><strong>${error.title}</strong> ${error.advice}</p>
    <p>
      <button type="button" disabled=${isBusy} onClick=${() => answerAgain(message)}>Try again</button>
      ${error.status === 401 && html`<button type="button" onClick=${() => update({ dialog: "key" })}>Enter the key</button>`}
      ${error.status === 400 && html`<button type="button" onClick=${() => update({ dialog: "settings" })}>Settings</button>`}
    </p>
  </div>`;
}

function AnswerTurn({ conversation, message, isBusy, isWritten }) {
  const isCut = !isWritten && ["waiting", "writing"].includes(message.status);
  return html`<li class=${isWritten ? "turn answer written" : "turn answer"}>
    <h2 class="unseen">${message.model || "Answer"}</h2>
    ${message.reasoning &&
    html`<details class="reasoning"><summary>Reasoning</summary><p>${message.reasoning}</p></details>`}
    ${message.content && html`<${Markdown} text=${message.content} isDone=${!isWritten} />`}
    ${isWritten && message.status === "waiting" && html`<${Waiting} message=${message} />`}
    ${message.status === "stopped" && html`<p class="aside">Stopped.</p>`}
    ${isCut && html`<p class="aside">The page was closed before the end.</p>`}
    ${message.result?.reason === "length" &&
    html`<p class="aside">Cut: the answer was as long as allowed. “Longest answer” in the settings changes that.</p>`}
    ${message.error && html`<${Failure} message=${message} isBusy=${isBusy} />`}
    <${StepsDown} result=${message.result} />
    ${!isWritten &&
    html`<div class="actions">
      <${Versions} conversation=${conversation} message=${message} isBusy=${isBusy} />
      <${IconButton} icon="copy" label="Copy" onClick=${() => copyMessage(message)} />
      <${IconButton} icon="retry" label="Answer again" disabled=${isBusy} onClick=${() => answerAgain(message)} />
      <${Cost} message=${message} />
    </div>`}
  </li>`;
}

function Welcome() {
  return html`<div class="welcome">
    <p class="large">What is on your mind?</p>
    <p class="quiet">What you write goes to this server and nowhere else.</p>
  </div>`;
}

/** How near the end counts as reading along: there the text stays in sight while it grows. */
const NEAR = 60;

export function Thread({ conversation }) {
  const place = useRef(null);
  const follows = useRef(true);
  const [isAway, setIsAway] = useState(false);
  const path = shownPath(conversation);
  const last = path.at(-1);
  const written = state.running.get(conversation.id)?.message;
  const toEnd = () => (place.current.scrollTop = place.current.scrollHeight);
  useLayoutEffect(() => {
    if (last?.status === "waiting") follows.current = true; // somebody has just sent it
    if (follows.current) toEnd();
  });
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = place.current;
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR;
    setIsAway(!follows.current);
  };
  return html`<div class="scroll" ref=${place} onScroll=${onScroll} tabindex="-1">
      ${path.length === 0 && html`<${Welcome} />`}
      <ol class="thread">
        ${path.map((message) => {
          const Turn = message.role === "user" ? UserTurn : AnswerTurn;
          const rest = { conversation, message, isBusy: Boolean(written), isWritten: message === written };
          return html`<${Turn} key=${message.id} ...${rest} />`;
        })}
      </ol>
    </div>
    ${isAway && html`<button type="button" class="to-end" aria-label="To the end" onClick=${toEnd}><${Icon} name="down" /></button>`}`;
}
