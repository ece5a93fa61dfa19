// Requests to the server; a failed request throws an Error with the server's message.

const { command } = JSON.parse(document.getElementById("settings").textContent);

export async function ask(path, query = {}) {
  return reply(fetch(`${path}?${new URLSearchParams(query)}`));
}

export async function send(path, body, query = {}) {
  const isFile = body instanceof Blob;
  return reply(
    fetch(`${path}?${new URLSearchParams(query)}`, {
      method: "POST",
      headers: { "content-type": isFile ? "application/octet-stream" : "application/json" },
      body: isFile ? body : JSON.stringify(body),
    }),
  );
}

async function reply(request) {
  let response;
  try {
    response = await request;
  } catch {
    throw new Error(`the server does not respond; is 'flipbench ${command}' still running?`);
  }
  const text = await response.text();
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error(text.trim() || `status ${response.status}`);
  }
  if (!response.ok) throw new Error(data.error ?? `status ${response.status}`);
  return data;
}
