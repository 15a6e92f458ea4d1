'use strict';
const express = require('express');

const app = express();
app.use(express.text());
app.post('/items/:number', (request, response) => {
  response.set('X-Powered-By', 'FRE').json({ number: Number(request.params.number), q: request.query.q, body: request.body });
});
app.listen(process.env.PORT, '127.0.0.1');
