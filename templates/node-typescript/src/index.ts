import { createHash } from "node:crypto";

interface Order {
  items: { price: number; count: number }[];
}

// What an order comes to, and a reference for it.
export function handle(event: { body: Buffer }): { total: number; reference: string } {
  const { items }: Order = JSON.parse(event.body.toString());
  const total = items.reduce((sum, item) => sum + item.price * item.count, 0);
  return { total, reference: createHash("sha256").update(String(total)).digest("hex").slice(0, 8) };
}
