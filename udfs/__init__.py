"""Functions over columns of pictures and other media, for curating a table before training from it.

Every function wears the same face (see `udfs.Face`): called with bytes, a ``daft.File`` or None it computes at once; called
with a Daft expression it builds one, for a binary column and for a File column alike::

    from daft import col
    from udfs import image

    image.brightness(jpeg_bytes)  # 112.12
    frames.with_column("brightness", image.brightness(col("frame_jpg")))  # a Float64 column
    image.brightness(col("frame_jpg"), on_error="null", key=col("sample_token"))  # bad pictures become null

Importing this package loads neither Daft nor Pillow nor numpy.
"""

from __future__ import annotations

from udfs import image, media
from udfs._face import Face, MediaError

__all__ = ["Face", "MediaError", "image", "media"]
