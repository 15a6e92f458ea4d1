// Any program that answers HTTP where $PORT says will do.
const { createServer } = require("node:http");

createServer((request, response) => {
  console.log(`called with ${request.method} ${request.url}`);
  response.setHeader("Content-Type", "application/json");
  response.end(JSON.stringify({ hello: "world", path: request.url }));
}).listen(process.env.PORT, "127.0.0.1");
