// Echoes what comes over WebSockets, and tells those who listen to its events.
const http = require("node:http");
const { WebSocketServer } = require("ws");

const listeners = new Set();

const server = http.createServer((req, res) => {
  switch (req.url) {
    case "/events":
      res.writeHead(200, { "Content-Type": "text/event-stream" });
      res.write("data: welcome\n\n");
      listeners.add(res);
      res.on("close", () => listeners.delete(res));
      return;
    case "/tell":
      for (const l of listeners) l.write("data: told\n\n");
      break;
    case "/finish":
      for (const l of listeners) l.end();
      break;
  }
  res.end("well");
});

new WebSocketServer({ server }).on("connection", (socket) => {
  socket.on("message", (data, isBinary) => {
    const command = isBinary ? "" : data.toString();
    if (command === "die") process.exit(3);
    if (command === "close") return socket.close(4000, "asked to");
    socket.send(data, { binary: isBinary });
  });
});

server.listen(process.env.PORT);
