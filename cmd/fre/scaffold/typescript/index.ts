interface Event {
  path: string;
  body: Buffer;
}

interface Context {
  logger: { info(text: string): void };
}

export async function handle(event: Event, context: Context): Promise<{ hello: string; path: string }> {
  context.logger.info(`called with ${event.body.length} bytes`);
  return { hello: "world", path: event.path };
}
