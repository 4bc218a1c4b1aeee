/** The browser client of the realtime channel. */

export interface Message<Data = unknown> {
  /** The channel, exactly as the app named it. */
  channel: string;
  /** What sort of message: `message` unless the app said otherwise. */
  kind: string;
  data: Data;
  /** True if another client sent it, within the bounds of its grant. */
  client?: boolean;
  /** Who that client is, as the app said when it minted its grant. */
  sender?: string;
}

/** `closed` is final; open() again if the person signs in anew. */
export type State = "connecting" | "live" | "waiting" | "closed";

export interface Options<Data = unknown> {
  /** Address of the stream, which ends in `/v1/stream`. */
  url: string | URL;
  /**
   * Calls the app's own method, which decides about access anew, and returns a grant's token.
   * Null or an empty text means that there is no access: the stream closes. A thrown error means
   * that it could not be asked: it is asked again later.
   */
  mint: () => Promise<string | null> | string | null;
  onMessage?: (message: Message<Data>) => void;
  /** Something was missed for good on these channels: load again what the page shows of them. */
  onReset?: (channels: string[]) => void;
  onState?: (state: State, reason: string) => void;
  /** Default `sse`. */
  transport?: "sse" | "websocket";
  /** Where to go on, such as a cursor that came with the page. */
  cursor?: string;
  /** First wait after a failure, until the server says otherwise. Default 1,000. */
  retryMs?: number;
  /** Longest wait after failures. Default 30,000. */
  retryMsMax?: number;
  /** Silence after which a connection counts as dead; three heartbeats. Default 45,000. */
  silenceMs?: number;
  /** Grants that may be refused in a row before the stream closes. Default 5. */
  mintsMax?: number;
  fetch?: typeof fetch;
  WebSocket?: typeof WebSocket;
}

export interface Stream {
  readonly state: State;
  /** Why it is in that state, for logs. */
  readonly reason: string;
  /** Where it is; give it to `open` to go on there. */
  readonly cursor: string;
  /** Connections opened so far. */
  readonly connects: number;
  /** Grants asked for so far. */
  readonly mints: number;
  /** Resolves when the stream is closed for good. */
  readonly closed: Promise<void>;
  /** Resolves to an empty text, or to why the signal was refused, such as `rate`. */
  publish(channel: string, kind: string, data: unknown): Promise<string>;
  close(): void;
}

export function open<Data = unknown>(options: Options<Data>): Stream;

export interface ServerSentEvent {
  name: string;
  data: string;
  id: string;
}

/** For tests and for other clients: bytes in, events out. */
export class EventParser {
  constructor(dispatch: (event: ServerSentEvent) => void);
  retryMs: number;
  id: string;
  feed(bytes: Uint8Array): void;
}
