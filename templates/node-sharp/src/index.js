'use strict';

const sharp = require('sharp');

sharp.cache(false);

exports.handle = async (event) => {
  try {
    const picture = sharp(event.body, { limitInputPixels: 50_000_000 }).resize({ width: 16 });
    const { data, info } = await picture.png().toBuffer({ resolveWithObject: true });
    return { status: 200, headers: { 'Content-Type': 'image/png', 'X-Size': `${info.width}x${info.height}` }, body: data };
  } catch (error) {
    return { status: 400, headers: { 'Content-Type': 'text/plain' }, body: `not a picture: ${error.message}\n` };
  }
};
