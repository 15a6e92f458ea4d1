'use strict';

const yaml = require('js-yaml');

exports.handle = async (event) => {
  try {
    return yaml.load(event.body.toString());
  } catch (error) {
    return { status: 400, headers: { 'Content-Type': 'text/plain' }, body: `${error.message}\n` };
  }
};
