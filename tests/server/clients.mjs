// OpenAI's, Anthropic's and ollama's own clients for JavaScript ask the server at an address; prints what they got as JSON.
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";

const [url] = process.argv.slice(2);
const messages = [{ role: "user", content: "hello" }];
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const ollama = new Ollama({ host: url });
const found = {};

const chat = { model: "demo", messages, max_tokens: 9 };
const answer = await openai.chat.completions.create(chat);
found.chat = answer.choices[0].message.content;
found.tokens = answer.usage.completion_tokens;
found.stream = "";
for await (const chunk of await openai.chat.completions.create({ ...chat, stream: true }))
  found.stream += chunk.choices[0]?.delta?.content ?? "";
const response = await openai.responses.create({ model: "demo", input: "hello", max_output_tokens: 9 });
found.response = response.output_text;
const tools = [{ type: "function", function: { name: "pick", parameters: { type: "object", properties: { size: { enum: ["small", "large"] } }, required: ["size"], additionalProperties: false } } }];
const called = await openai.chat.completions.create({ model: "demo", messages, tools, tool_choice: "required" });
found.call = JSON.parse(called.choices[0].message.tool_calls[0].function.arguments);
const vectors = await openai.embeddings.create({ model: "demo", input: ["the model", "a GPU"] });
found.embeddings = vectors.data.map((each) => Array.from(each.embedding));
found.models = (await openai.models.list()).data.map((each) => each.id);
try {
  await openai.chat.completions.create({ ...chat, top_p: 2 });
} catch (error) {
  found.refused = [error.status, error.param];
}

const message = await anthropic.messages.create(chat);
found.message = message.content[0].text;
found.streamed = await anthropic.messages.stream(chat).finalText();
found.counted = (await anthropic.messages.countTokens({ model: "demo", messages })).input_tokens;

found.lama = (await ollama.chat({ model: "demo", messages, options: { num_predict: 9 } })).message.content;
found.lamas = "";
for await (const part of await ollama.chat({ model: "demo", messages, options: { num_predict: 9 }, stream: true }))
  found.lamas += part.message.content;
found.listed = (await ollama.list()).models.map((each) => each.model);

console.log(JSON.stringify(found));
