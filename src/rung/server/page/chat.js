// What a person can do: send, stop, edit, answer again, switch versions; open, name, delete and export conversations.
import { add, imported, newConversation, removeLeaf, requestMessages, show } from "./conversation.js";
import { shownPath, titleOf, toMarkdown, versions } from "./conversation.js";
import { checkHealth, readModels, ServerError, streamAnswer, useKey } from "./server.js";
import { state, update, updateSoon } from "./state.js";
import * as storage from "./storage.js";
import { download } from "./ui.js";

/** Milliseconds between copies of an answer that are kept, and between questions to a server that does not answer. */
const KEEP = 1000, ASK_AGAIN = 2000;

export function announce(text) {
  update({ announcement: text });
}

/** Show a sentence at the bottom for some seconds. */
export function notify(text, action, onAction) {
  const notice = { text, action, onAction };
  update({ notice, announcement: text });
  setTimeout(() => state.notice === notice && update({ notice: null }), action ? 10000 : 5000);
}

async function keep(conversation) {
  try {
    await storage.writeConversation(conversation);
    update({ heads: await storage.readHeads() });
  } catch {
    notify("The browser has no room for this conversation. Export it, or delete others.");
  }
}

/** Keep a change that a person made: the conversation goes to the top of the list. */
async function touch(conversation) {
  conversation.updated = Date.now();
  update();
  await keep(conversation);
}

// The server

let asking = 0;

/** Read which models there are; ask again until the server answers and they are loaded. */
export async function connect() {
  clearTimeout(asking);
  try {
    const models = await readModels();
    const isServed = models.some(({ id }) => id === state.model);
    update({ models, model: isServed ? state.model : (models[0]?.id ?? null), trouble: null });
    await checkHealth();
    if (models.some(({ meta }) => !meta)) update({ models: await readModels() });
    update({ trouble: null });
  } catch (trouble) {
    update({ trouble, ...(trouble.status === 401 && { dialog: "key" }) });
    if (trouble.status !== 401) asking = setTimeout(connect, ASK_AGAIN);
  }
}

export function chooseModel(id) {
  storage.writePreference("model", id);
  update({ model: id });
}

/** Use a key that was entered, and do again what failed without it. */
export async function enterKey(key, isRemembered) {
  useKey(key, isRemembered);
  update({ dialog: null });
  await connect();
  const last = state.conversation && shownPath(state.conversation).at(-1);
  if (!state.trouble && last?.error?.status === 401) answerAgain(last);
}

export function setOption(name, value) {
  const { [name]: _, ...options } = state.options;
  if (value !== null) options[name] = value;
  storage.writePreference("options", options);
  update({ options });
}

export function setTheme(theme) {
  storage.writePreference("theme", theme);
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  update({ theme });
}

/** Set the system prompt of the conversation that is shown, and of new ones where `isDefault`. */
export function setSystem(text, isDefault) {
  state.conversation.system = text;
  if (isDefault) storage.writePreference("system", text || null);
  if (state.conversation.shown) touch(state.conversation);
  else update();
}

// Conversations

export function startConversation() {
  update({ conversation: newConversation(storage.readPreference("system", "")) });
  if (location.hash) history.pushState(null, "", location.pathname + location.search);
}

export async function openConversation(id) {
  const found = state.running.get(id)?.conversation ?? (await storage.readConversation(id));
  if (!found) return startConversation();
  update({ conversation: found });
  if (location.hash !== `#${id}`) history.pushState(null, "", `#${id}`);
}

export async function renameConversation(id, title) {
  const found = id === state.conversation.id ? state.conversation : await storage.readConversation(id);
  found.title = title.trim();
  await keep(found);
}

export async function deleteConversation(id) {
  const answer = state.running.get(id);
  const found = answer?.conversation ?? (await storage.readConversation(id));
  if (answer) answer.isDeleted = true;
  answer?.controller.abort();
  await storage.deleteConversation(id);
  update({ heads: await storage.readHeads() });
  if (id === state.conversation.id) startConversation();
  notify(`“${titleOf(found)}” is deleted.`, "Undo", async () => {
    update({ notice: null });
    await keep(found);
    await openConversation(id);
  });
}

const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";

export async function exportMarkdown(id) {
  const found = await storage.readConversation(id);
  download(`${fileName(titleOf(found))}.md`, "text/markdown", toMarkdown(found));
}

export async function exportAll() {
  const document = { rung: 1, conversations: await storage.readAll() };
  download("rung-conversations.json", "application/json", JSON.stringify(document, null, 1));
}

/** Add the conversations of a file that `exportAll` wrote. */
export async function importFile(file) {
  let found = [];
  try {
    found = JSON.parse(await file.text()).conversations.map(imported).filter(Boolean);
  } catch {
    // A file that is no export has nothing to add, and the sentence below says so.
  }
  if (!found.length) return notify(`${file.name} has no conversations: choose a file that was exported here.`);
  for (const conversation of found) await keep(conversation);
  notify(found.length === 1 ? "One conversation was added." : `${found.length} conversations were added.`);
}

// Messages

/** Send a message below the last one that is shown. */
export function send(text, files) {
  const { conversation } = state;
  const last = shownPath(conversation).at(-1);
  const message = add(conversation, last?.id ?? null, { role: "user", content: text, files });
  if (location.hash !== `#${conversation.id}`) history.pushState(null, "", `#${conversation.id}`);
  return respond(conversation, message.id);
}

/** Send another version of a message. */
export function edit(message, text) {
  const { conversation } = state;
  const files = message.files ?? [];
  const version = add(conversation, message.parent, { role: "user", content: text, files });
  return respond(conversation, version.id);
}

/** Write another version of an answer; one that failed before its first word is replaced. */
export function answerAgain(message) {
  const { conversation } = state;
  if (state.running.has(conversation.id)) return;
  if (message.status === "failed" && !message.content) removeLeaf(conversation, message);
  respond(conversation, message.parent);
}

/** Show the version of a turn that is `step` further. */
export function showVersion(message, step) {
  const all = versions(state.conversation, message);
  const index = all.indexOf(message) + step;
  show(state.conversation, all[index]);
  announce(`Version ${index + 1} of ${all.length}`);
  keep(state.conversation);
}

/** End the answer that is written in the conversation that is shown. Return whether there was one. */
export function stop() {
  const found = state.running.get(state.conversation.id);
  found?.controller.abort();
  return Boolean(found);
}

/** Have an answer written below the message `parent`. */
async function respond(conversation, parent) {
  const fields = { role: "assistant", content: "", reasoning: "", model: state.model ?? "", status: "waiting" };
  const body = { ...state.options, messages: requestMessages(conversation, parent) };
  if (state.model) body.model = state.model;
  const message = add(conversation, parent, fields);
  const answer = { conversation, message, controller: new AbortController(), isDeleted: false };
  state.running.set(conversation.id, answer);
  announce("Waiting for the answer");
  touch(conversation);
  await write(answer, streamAnswer(body, answer.controller.signal));
  state.running.delete(conversation.id);
  update();
  if (answer.isDeleted) return;
  await keep(conversation);
  announce(message.error ? `${message.error.title} ${message.error.advice}` : message.content);
}

/** Write the parts of an answer into its message until it ends, however it ends. */
async function write(answer, parts) {
  const { conversation, message } = answer;
  const clock = new Stopwatch();
  let kept = Date.now();
  try {
    for await (const part of parts) {
      take(message, part, clock);
      updateSoon();
      if (Date.now() > kept + KEEP && !answer.isDeleted) {
        kept = Date.now();
        storage.writeConversation(conversation).catch(() => {}); // said when the answer has ended
      }
    }
    message.status = "done";
  } catch (error) {
    message.status = error.name === "AbortError" ? "stopped" : "failed";
    if (message.status === "failed") message.error = failureOf(error);
  }
  message.result = { ...message.result, ...clock.result() };
  delete message.ahead;
}

/** Return a failure as it is kept with its message. */
function failureOf(error) {
  if (!(error instanceof ServerError)) console.error(error);
  if (error.status === 401) update({ dialog: "key" });
  if (error.status === 0) connect();
  return { title: error.title ?? "The page failed.", advice: error.advice ?? "Try again.", status: error.status ?? 0 };
}

function take(message, part, clock) {
  if (part.ahead !== undefined) {
    message.ahead = part.ahead;
    return;
  }
  if (part.text || part.reasoning) {
    clock.word();
    message.status = "writing";
    message.content += part.text;
    message.reasoning += part.reasoning;
  }
  const { reason, usage, rung } = part;
  if (reason || usage || rung) {
    message.result = {
      ...message.result,
      ...(reason && { reason }),
      ...(usage && { promptTokens: usage.prompt_tokens, tokens: usage.completion_tokens }),
      ...(usage?.prompt_tokens_details && { cachedTokens: usage.prompt_tokens_details.cached_tokens }),
      ...(rung && { rung }),
    };
  }
}

/** Seconds of an answer as this page sees them. */
class Stopwatch {
  begun = performance.now();
  words = 0;

  word() {
    this.last = performance.now();
    this.first ??= this.last;
    this.words += 1;
  }

  result() {
    if (!this.first) return {};
    return { firstSeconds: (this.first - this.begun) / 1000, writeSeconds: (this.last - this.first) / 1000, pieces: this.words };
  }
}
