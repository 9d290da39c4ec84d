// What the service is asked: JSON in and out, and texts that come piece by piece.

const KEPT = "token"; // for as long as the tab is open, and never part of a link

/** What the service said was wrong; `status` as of HTTP, 0 where it did not answer; `field`: the part of the request. */
export class Fault extends Error {
  constructor(status, message, field = null) {
    super(message);
    Object.assign(this, { status, field });
  }
}

export const keepToken = (token) => (token ? sessionStorage.setItem(KEPT, token) : sessionStorage.removeItem(KEPT));

/** The answer to a GET or, with a body, to a POST. */
export async function ask(path, body, signal) {
  return (await answered(path, body, signal)).json();
}

/** The pieces of a text as they are written. */
export async function* stream(path, body, signal) {
  const response = await answered(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Fault(0, "the service stopped before the answer was complete");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const said = JSON.parse(data);
      if (said.error) throw new Fault(500, said.error.message);
      yield said.choices[0].text;
    }
  }
}

async function answered(path, body, signal) {
  const token = sessionStorage.getItem(KEPT), headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Fault(0, "the service does not answer; check that it is running");
  }
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({ error: { message: `status ${response.status}` } }));
  throw new Fault(response.status, error.message ?? error, error.param);
}
