import io

import numpy
from PIL import Image, UnidentifiedImageError

Image.MAX_IMAGE_PIXELS = 50_000_000  # a small file can hold a large picture


def handle(event, context):
    width = int(event.query.get("width", ["32"])[0])
    if not 1 <= width <= 1024:
        return 400, {"Content-Type": "text/plain"}, "width is from 1 to 1024\n"
    try:
        picture = Image.open(io.BytesIO(event.body)).convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError) as error:
        return 400, {"Content-Type": "text/plain"}, f"not a picture: {error}\n"
    picture.thumbnail((width, width))
    colour = numpy.asarray(picture).reshape(-1, 3).mean(axis=0).round().astype(int)
    out = io.BytesIO()
    picture.save(out, "PNG")
    headers = {
        "Content-Type": "image/png",
        "X-Size": "{}x{}".format(*picture.size),
        "X-Colour": "#{:02x}{:02x}{:02x}".format(*colour),
    }
    return 200, headers, out.getvalue()
