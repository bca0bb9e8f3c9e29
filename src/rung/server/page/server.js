// The server's HTTP API: models, health, streamed answers. Paths are relative: a proxy may put all under a path of its own.
import { readPreference, writePreference } from "./storage.js";

/** A failure in plain words: what happened, and what to do about it. */
export class ServerError extends Error {
  constructor(title, advice, more = {}) {
    super(title);
    this.title = title;
    this.advice = advice;
    this.status = more.status ?? 0;
    this.code = more.code ?? null;
  }
}

const unreachable = () =>
  new ServerError("The server does not answer.", "Is “rung serve” still running? Start it again, then try again.");

/** Return the advice that goes with a refusal of the server, whose own sentence is the title. */
function adviceOn(status, code, seconds) {
  if (code === "context_length_exceeded")
    return "Begin a new conversation, send less, or start the server with a larger --context.";
  if (code === "host_not_allowed" || code === "origin_not_allowed") return "Whoever started the server can allow it.";
  if (code === "unknown_parameter" || code === "invalid_value") return "Change it in the settings, then try again.";
  if (status === 401) return "Enter the key that the server printed when it started.";
  if (status === 404) return "Choose another model above.";
  if (status === 413) return "Attach less.";
  if (status === 503) return seconds ? `Try again in ${seconds} s.` : "Try again in a moment.";
  return status >= 500 ? "The server's log says why. Try again." : "";
}

async function refusalOf(response) {
  const { error } = await response.json().catch(() => ({}));
  const said = typeof error === "string" ? error : error?.message;
  const advice = adviceOn(response.status, error?.code, Number(response.headers.get("retry-after")));
  const more = { status: response.status, code: error?.code };
  return new ServerError(said || `The server answered with status ${response.status}.`, advice, more);
}

let key = readPreference("key", null) ?? readPreference("key", null, "sessionStorage");

/** Send a key from now on; keep it beyond this tab only where `isRemembered`. */
export function useKey(text, isRemembered) {
  key = text || null;
  writePreference("key", isRemembered ? key : null);
  writePreference("key", isRemembered ? null : key, "sessionStorage");
}

export async function call(path, options = {}) {
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    throw error.name === "AbortError" ? error : unreachable();
  }
  if (!response.ok) throw await refusalOf(response);
  return response;
}

/** Return the models that are served: {id, meta}. Raises ServerError. */
export async function readModels() {
  return (await (await call("v1/models")).json()).data;
}

/** Raise ServerError unless the models answer; status 503 while they load. */
export async function checkHealth() {
  await call("health");
}

/** Yield the lines of server-sent events: {data} and {comment}. */
async function* linesOf(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield { data: line.slice(5).trim() };
        else if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // whoever stops reading ends the answer on the server
  }
}

/** Return what a chunk of a streamed answer says. Raises ServerError for one that says it failed. */
function partOf(chunk) {
  if (chunk.error) throw new ServerError(chunk.error.message, adviceOn(500, chunk.error.code), chunk.error);
  const choice = chunk.choices?.[0];
  return {
    text: choice?.delta?.content ?? "",
    reasoning: choice?.delta?.reasoning_content ?? "",
    reason: choice?.finish_reason ?? null,
    usage: chunk.usage ?? null,
    rung: chunk.rung ?? null,
  };
}

/** Yield the parts of a streamed answer: {text, reasoning, reason, usage, rung}, and {ahead} while it waits in a queue.
 *
 * Raises ServerError, also where the connection breaks; AbortError where `signal` ends it.
 */
export async function* streamAnswer(body, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  try {
    for await (const { data, comment } of linesOf(response.body)) {
      if (data === "[DONE]") return;
      if (data) yield partOf(JSON.parse(data));
      else if (comment?.startsWith("queue")) yield { ahead: Number(comment.slice(15)) };
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
  }
  throw new ServerError("The answer broke off: the connection to the server was lost.", "Try again.");
}
