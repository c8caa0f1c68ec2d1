// The same as forward.py, for images without Python: `node forward.js PORT SOCKET`.
const net = require("node:net")
const [port, path] = process.argv.slice(2)
net
  .createServer((client) => {
    const model = net.connect({ path })
    const end = () => {
      client.destroy()
      model.destroy()
    }
    for (const side of [client, model]) side.on("error", end).on("close", end)
    client.pipe(model)
    model.pipe(client)
  })
  .listen(Number(port), "127.0.0.1")
