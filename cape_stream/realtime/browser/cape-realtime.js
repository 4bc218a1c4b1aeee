/**
 * The browser client of the realtime channel: one file, no dependencies.
 *
 *   import { open } from "./cape-realtime.js";
 *   const stream = open({
 *     url: "https://realtime.example/v1/stream",
 *     mint: () => callMyMethod("joinRoom"),       // returns a grant's token, or null: no access
 *     onMessage: ({ channel, kind, data }) => {},
 *     onReset: (channels) => reloadWhatThePageShows(),
 *     onState: (state, reason) => {},             // "connecting", "live", "waiting", "closed"
 *   });
 *
 * It opens, resumes with the last cursor after anything that breaks, mints again through the app's
 * own method when a grant is over, and stops for good when access was withdrawn. A grant that was
 * refused is never shown again, so no page can loop on a dead one.
 */

const SUBPROTOCOL = "cape.realtime.v1";
const GRANT_PROTOCOL = "cape.grant.";
const OVER = new Set(["expired", "malformed", "not_yet_valid"]);
const NEVER = new Set(["revoked", "origin", "http_1_1_only"]);

/** Splits a stream of server-sent events, byte by byte as it comes, into events. */
export class EventParser {
  /** @param {(event: {name: string, data: string, id: string}) => void} dispatch */
  constructor(dispatch) {
    this.dispatch = dispatch;
    this.retryMs = 0;
    this.id = "";
    this.left = "";
    this.name = "";
    this.data = [];
    this.decoder = new TextDecoder("utf-8");
    this.skipLineFeed = false;
  }

  /** @param {Uint8Array} bytes */
  feed(bytes) {
    let text = this.left + this.decoder.decode(bytes, { stream: true });
    if (this.skipLineFeed && text.startsWith("\n")) text = text.slice(1);
    if (text) this.skipLineFeed = false;
    const lineEnd = /\r\n|\n|\r/g;
    let from = 0;
    for (let match = lineEnd.exec(text); match; match = lineEnd.exec(text)) {
      this.line(text.slice(from, match.index));
      from = lineEnd.lastIndex;
      // A line feed that comes with the next bytes belongs to this carriage return.
      if (match[0] === "\r" && from === text.length) this.skipLineFeed = true;
    }
    this.left = text.slice(from);
  }

  line(line) {
    if (line === "") return this.end();
    const colon = line.indexOf(":");
    if (colon === 0) return undefined;
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (name === "data") this.data.push(value);
    else if (name === "event") this.name = value;
    else if (name === "id" && !value.includes("\0")) this.id = value;
    else if (name === "retry" && /^\d+$/.test(value)) this.retryMs = Number(value);
    return undefined;
  }

  end() {
    const { name, data } = this;
    this.name = "";
    this.data = [];
    this.dispatch({ name: data.length ? name || "message" : "", data: data.join("\n"), id: this.id });
  }
}

/** Opens a stream; see cape-realtime.d.ts for what can be said. */
export function open(options) {
  return new RealtimeStream(options);
}

/** Why an attempt ended: "over" (mint again), "again" (same grant), or "never" (stop). */
class Ended extends Error {
  constructor(then, reason, afterMs = 0) {
    super(reason);
    this.then = then;
    this.afterMs = afterMs;
  }
}

class RealtimeStream {
  constructor(options) {
    if (!options || !options.url || typeof options.mint !== "function") {
      throw new TypeError("open() needs a url and a mint function");
    }
    this.options = {
      transport: "sse",
      retryMs: 1000,
      retryMsMax: 30000,
      silenceMs: 45000,
      mintsMax: 5,
      fetch: (...words) => globalThis.fetch(...words),
      WebSocket: globalThis.WebSocket,
      ...options,
    };
    this.cursor = options.cursor || "";
    this.state = "connecting";
    this.reason = "";
    this.connects = 0;
    this.mints = 0;
    this.token = "";
    this.failures = 0;
    this.refusals = 0;
    this.retryMs = this.options.retryMs;
    this.ref = 0;
    this.answers = new Map();
    this.abort = new AbortController();
    this.closed = this.run();
  }

  /** Leaves for good. */
  close() {
    this.stop("closed by the page");
  }

  /** Publishes one signal within the bounds of the grant; resolves to "" or why it was refused. */
  async publish(channel, kind, data) {
    if (!this.token) return "not connected";
    if (this.socket && this.socket.readyState === 1) {
      const ref = ++this.ref;
      const answer = new Promise((resolve) => this.answers.set(ref, resolve));
      this.socket.send(JSON.stringify({ type: "publish", ref, channel, kind, data }));
      return answer;
    }
    const { fetch, url } = this.options;
    try {
      const response = await fetch(String(url).replace(/\/stream$/, "/publish"), {
        method: "POST",
        headers: { authorization: `Bearer ${this.token}`, "content-type": "application/json" },
        body: JSON.stringify({ channel, kind, data }),
        credentials: "omit",
      });
      return response.ok ? "" : (await errorOf(response)) || String(response.status);
    } catch {
      return "unreachable";
    }
  }

  async run() {
    while (!this.abort.signal.aborted) {
      try {
        this.say("connecting");
        if (!this.token) await this.mint();
        this.connects += 1;
        await (this.options.transport === "websocket" ? this.viaSocket() : this.viaFetch());
        throw new Ended("again", "the connection ended");
      } catch (error) {
        if (this.abort.signal.aborted) return;
        const ended = error instanceof Ended ? error : new Ended("again", String(error));
        if (ended.then === "never") {
          this.stop(ended.message);
          return;
        }
        if (ended.then === "over") this.token = "";
        await this.pause(ended);
      }
    }
  }

  async mint() {
    // Counted until a stream is live: an app whose grants are all refused is not asked for ever.
    if (this.refusals >= this.options.mintsMax) {
      throw new Ended("never", "every new grant was refused");
    }
    this.mints += 1;
    const token = await this.options.mint(); // throwing means: try later
    if (!token) throw new Ended("never", "the app grants no access");
    this.token = token;
    this.refusals += 1;
  }

  live() {
    this.failures = 0;
    this.refusals = 0;
    this.say("live");
  }

  async viaFetch() {
    const { fetch, url } = this.options;
    const headers = { authorization: `Bearer ${this.token}`, accept: "text/event-stream" };
    if (this.cursor) headers["last-event-id"] = this.cursor;
    const attempt = new AbortController();
    const leave = () => attempt.abort();
    this.abort.signal.addEventListener("abort", leave, { once: true });
    const watch = this.watch(leave);
    try {
      const response = await fetch(url, {
        headers,
        cache: "no-store",
        credentials: "omit",
        signal: attempt.signal,
      });
      if (response.status !== 200) throw await refusalOf(response);
      const parser = new EventParser((event) => this.take(event));
      parser.id = this.cursor;
      const reader = response.body.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        watch.beat();
        parser.feed(value);
        if (parser.retryMs) this.retryMs = parser.retryMs;
      }
    } finally {
      watch.stop();
      this.abort.signal.removeEventListener("abort", leave);
      attempt.abort(); // frees the connection, whatever ended the loop
    }
  }

  take({ name, data, id }) {
    if (id) this.cursor = id;
    if (!name) return;
    const found = parse(data);
    if (found) this.handle(name, found);
  }

  viaSocket() {
    const { url, WebSocket } = this.options;
    const address = new URL(url, globalThis.location && globalThis.location.href);
    address.protocol = address.protocol.replace("http", "ws");
    if (this.cursor) address.searchParams.set("last_event_id", this.cursor);
    return new Promise((resolve, reject) => {
      const socket = new WebSocket(address, [SUBPROTOCOL, GRANT_PROTOCOL + this.token]);
      this.socket = socket;
      const done = (error) => {
        watch.stop();
        this.abort.signal.removeEventListener("abort", leave);
        socket.onmessage = socket.onclose = null;
        if (this.socket === socket) this.socket = undefined;
        for (const answer of this.answers.values()) answer("the connection ended");
        this.answers.clear();
        socket.close();
        if (error) reject(error);
        else resolve(undefined);
      };
      const leave = () => done();
      const watch = this.watch(leave);
      this.abort.signal.addEventListener("abort", leave, { once: true });
      socket.onclose = (event) => done(closingOf(event));
      socket.onmessage = (event) => {
        watch.beat();
        const found = parse(event.data);
        if (!found) return;
        try {
          this.handle(found.type, found);
          const at = found.type === "message" ? found.id : found.cursor;
          if (at) this.cursor = at;
        } catch (error) {
          done(error);
        }
      };
    });
  }

  /** What an event means, on either wire. */
  handle(name, found) {
    const { onMessage, onReset } = this.options;
    switch (name) {
      case "message":
        call(onMessage, found);
        break;
      case "reset":
        call(onReset, found.channels || []);
        break;
      case "ready":
        if (found.retry_ms) this.retryMs = found.retry_ms;
        this.live();
        break;
      case "expired":
        if (found.cursor) this.cursor = found.cursor;
        throw new Ended("over", "expired", 1);
      case "revoked":
        throw new Ended("never", "revoked");
      case "reconnect":
        throw new Ended("again", "reconnect", found.retry_ms || this.retryMs);
      case "ack":
      case "refused": {
        const answer = this.answers.get(found.ref);
        this.answers.delete(found.ref);
        if (answer) answer(name === "ack" ? "" : found.reason);
        break;
      }
      default: // heartbeats, and what later servers may say
    }
  }

  /** Ends an attempt that has been silent for too long: a dead connection says nothing. */
  watch(leave) {
    let timer;
    const beat = () => {
      clearTimeout(timer);
      timer = setTimeout(leave, this.options.silenceMs);
    };
    beat();
    return { beat, stop: () => clearTimeout(timer) };
  }

  /** Waits before the next attempt: as told, else longer after every failure, by chance half of it less. */
  async pause({ message, afterMs }) {
    const bound = Math.min(this.options.retryMsMax, this.retryMs * 2 ** this.failures);
    const waitMs = afterMs || bound / 2 + Math.random() * (bound / 2);
    this.failures = Math.min(this.failures + 1, 16);
    this.say("waiting", message);
    await new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        globalThis.removeEventListener?.("online", wake);
        this.abort.signal.removeEventListener("abort", wake);
        resolve(undefined);
      };
      const timer = setTimeout(wake, waitMs);
      globalThis.addEventListener?.("online", wake);
      this.abort.signal.addEventListener("abort", wake);
    });
  }

  say(state, reason = "") {
    if (this.state === "closed") return;
    this.state = state;
    this.reason = reason;
    call(this.options.onState, state, reason);
  }

  stop(reason) {
    if (this.state === "closed") return;
    this.say("closed", reason);
    this.token = "";
    this.abort.abort();
  }
}

/** A page's own error must not end its stream. */
function call(callback, ...words) {
  try {
    if (callback) callback(...words);
  } catch (error) {
    globalThis.reportError?.(error);
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined; // nothing of ours; the next event is read
  }
}

async function errorOf(response) {
  return ((await response.json().catch(() => ({}))) || {}).error || "";
}

async function refusalOf(response) {
  const reason = await errorOf(response);
  if (response.status === 401 || OVER.has(reason)) return new Ended("over", reason || "refused");
  if (response.status === 403 || NEVER.has(reason)) return new Ended("never", reason || "refused");
  const afterMs = 1000 * Number(response.headers.get("retry-after") || 0);
  return new Ended("again", reason || `status ${response.status}`, afterMs * (0.5 + Math.random()));
}

function closingOf({ code, reason }) {
  if (code === 4401) return new Ended("over", reason || "refused");
  if (code === 4403) return new Ended("never", reason || "refused");
  return new Ended("again", reason || `close code ${code}`);
}
