"""Turns the bytes of a file into the image that is stored: checks it, and changes it where the config says so.

An image whose bytes every reader decodes as the config wants it keeps them. Any other is decoded, changed and encoded
again; a JPEG or PNG that only lies on its side is turned without loss where possible.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from imagebeam.transforms import elements
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import (
    checked_image,
    class_masks,
    frame_reader,
    image_formats,
    image_functions,
    orientations,
    pillow_decoder,
    pixel_type,
    pixels,
    png_structure,
    reader_decoder,
    resample,
    side_by_side,
    structure,
    turn_upright,
)
from imagebeam.transforms.images.checked_image import BadImageError, Image

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image

    from imagebeam.transforms.images import image_objects, number_reader

KEEP = "keep"
APPLY, REJECT = "apply", "reject"  # values of orientation, beside "keep"
EACH = "each"  # value of frames
SRGB = "srgb"
STRIP = "strip"
_KEPT_COLORSPACES = {"rgb": ("RGB",), "gray": ("GRAY",), "mean": ("GRAY",)}  # by image.color; "keep" takes any
_LOSSY = (image_formats.JPEG, image_formats.WEBP)  # formats that may store other pixels than they are given
_RECOLORED_BY_PILLOW = (("GRAY", "rgb"), ("RGB", "mean"))  # colorspace of a JPEG and image.color


@dataclasses.dataclass(frozen=True)
class ImagePolicy:
    """Checks, changes and stores every image as the config's section `image` says."""

    check: str = "structure"  # or "header", "decode", "tensorflow"
    raw_shape: tuple[int, int, int] | None = None  # height, width, channels if images come as bare pixels
    is_raw: bool = False  # whether they do, of shapes of their own: height and width are the expected ones
    is_base64: bool = False  # whether the bytes of each image are base64
    encode: str = KEEP  # or jpeg, png, webp, raw, int64_list, float_list
    other_formats: str = "encode"  # or "reject": images that are neither JPEG nor PNG, with encode "keep"
    frames: str = "first"  # what is stored of files with several images; or "reject", "each"
    orientation: str = APPLY  # or "keep", "reject": images that EXIF data call turned
    annotations: str = "stored"  # or "upright": to which pixels boxes and masks refer where EXIF data ask for a turn
    color: str = KEEP  # or rgb, gray, mean
    background: tuple[int, int, int] | None = None  # red, green, blue behind transparent pixels; None drops alpha
    white_level: int = pixels.WHITE  # the gray number of 16 bits that becomes 255
    profile: str = KEEP  # or "srgb": converts colors with an ICC profile
    numbers: pixel_type.PixelType = pixel_type.USUAL  # which numbers and bands of a file are stored, and as what
    plane: str = "axial"  # or coronal, sagittal, stored: how a volume of NIfTI is cut into slices
    metadata: str = KEEP  # or "strip": of images whose bytes are kept; what is encoded here has none
    scaling: resample.Scaling = resample.UNSCALED
    encoding: pixels.Encoding = pixels.USUAL
    limits: checked_image.Limits = checked_image.NO_LIMITS
    extra_types: tuple[pixel_type.ExtraType | None, ...] = ()  # of extra images, in their order; None: as the first
    part: side_by_side.Part = side_by_side.WHOLE  # what is stored of a file that holds several images side by side
    sum_pixels: bool = False  # compute the sums for mean and deviation
    objects: image_objects.AnnotationReader | None = None  # reads the file with each image's objects, if there is one
    masks: class_masks.MaskPolicy = class_masks.NUMBERS  # how masks with classes are stored
    functions: image_functions.ImageFunctions = image_functions.NONE  # code of the user that sees each picture
    list_column: str = ""  # column with the lists of images, whose places are the first of ImageRef.columns; "": none

    def for_image(self, ref: elements.ImageRef) -> ImagePolicy:
        """Returns the policy for one image, whose reference the functions of the user get."""
        return dataclasses.replace(self, functions=self.functions.for_image(ref)) if self.functions else self

    def prepare(self, data: bytes, expected: tuple[int, int] | None = None) -> Image:
        """Returns the image to store.

        Args:
            data: the bytes of one image.
            expected: height and width in pixels that the annotated image must have; None allows any.

        Raises:
            BadImageError: if the image is to be rejected.
        """
        if self.is_base64:
            data = structure.decode_base64(data)
        if (shape := self._shape_of(data, expected)) is not None:
            return self._prepare_raw(data, shape, expected)
        structure.check_size(data)
        self.limits.check_bytes(len(data))
        format = image_formats.sniff_format(data)
        if format in structure.CHECKED_FORMATS:
            checked = structure.check_format(data, format, "header" if self.check == "header" else "structure")
            if self._checks_headers or expected is not None:
                self._check_header(checked.height, checked.width, checked.orientation, expected)
            if self._wants_any_pixels or self._has_wanted_pixels(checked):
                turned = self._turn(checked)
                return self._keep(structure.strip_metadata(turned) if self.metadata == STRIP else turned)
            if self.resizes_in_c and (resized := self._resize_in_c(checked)) is not None:
                return resized
            if checked.format == image_formats.PNG:  # a JPEG may be decoded at a part of its size
                self.limits.check_decoded(checked.height, checked.width, checked.format)
            opened = pillow_decoder.open_lazily(data, checked.format)
            stated = checked.orientation
        elif format not in self._accepted():
            raise structure.refusal(data, format, self._accepted())
        elif self._reads_numbers(format):
            return self._encode_first_page(data, str(format), expected)
        else:
            opened = pillow_decoder.open_picture(data, str(format))
            stated = pixels.orientation(opened)
            self._check_header(*pixels.stored_size(opened, stated), stated, expected)
        return self._encode(opened, data, str(format), stated)

    def find_size(self, data: bytes) -> tuple[int, int]:
        """Returns height and width, in pixels, of the picture that annotations of an image refer to.

        Raises:
            BadImageError: if the image has none.
        """
        structure.check_size(data)
        format = image_formats.sniff_format(data)
        if format in structure.CHECKED_FORMATS:
            checked = structure.check_format(data, format, "header")
            height, width, turn = checked.height, checked.width, checked.orientation
        elif self._reads_numbers(format):
            _, page_of = self._open_pages(data, str(format))
            page = page_of(0)
            height, width, turn = page.height, page.width, page.orientation
        elif format in pillow_decoder.decoded_formats():
            opened = pillow_decoder.open_lazily(data, str(format))
            turn = pixels.orientation(opened)
            height, width = pixels.stored_size(opened, turn)
        else:
            raise structure.refusal(data, format, self._accepted())
        return orientations.turn_size(height, width, turn) if self.annotations == "upright" else (height, width)

    def prepare_extra_image(self, data: bytes, place: int) -> Image:
        """Returns an extra image of an example, checked and changed like the first; no statistics are taken of it.

        Args:
            data: the bytes of its file.
            place: its number among the extra images.

        Raises:
            BadImageError: if the example is to be rejected.
        """
        wanted = self.extra_types[place] if self.extra_types else None
        if wanted is not None:
            return wanted.check(self._for_types[wanted].prepare(data))
        try:
            return self._for_extra_images.prepare(data)
        except BadImageError as e:
            if e.reason is not Reason.PIXEL_TYPE:
                raise
            raise BadImageError(e.reason, f"{e.detail}; for this image alone: image.extra_images") from e

    def prepare_other_parts(self, data: bytes) -> list[Image]:
        """Returns the images beside the one that `prepare` returns, from left to right.

        Raises:
            BadImageError: if the example is to be rejected.
        """
        return [dataclasses.replace(self._for_extra_images, part=each).prepare(data) for each in self.part.others()]

    @functools.cached_property
    def _for_extra_images(self) -> ImagePolicy:
        return dataclasses.replace(self, sum_pixels=False, objects=None, functions=image_functions.NONE)

    @functools.cached_property
    def _for_types(self) -> dict[pixel_type.ExtraType, ImagePolicy]:
        own = dataclasses.replace(self._for_extra_images, color=KEEP, background=None, white_level=pixels.WHITE)
        return {
            each: dataclasses.replace(own, profile=KEEP, extra_types=(), numbers=each.numbers, encode=each.encode)
            for each in self.extra_types
            if each is not None
        }

    def prepare_frames(self, data: bytes, expected: tuple[int, int] | None = None) -> frame_reader.Frames | None:
        """Returns the pictures of a file that has several, if each is stored; None if `prepare` takes the file.

        Args:
            data: the bytes of one file.
            expected: as for `prepare`, of each picture.

        Raises:
            BadImageError: if the whole file is to be rejected.
        """
        format = image_formats.sniff_format(data)
        is_one = format not in (*frame_reader.FORMATS, *image_formats.MEDICAL)
        if self.frames != EACH or self.raw_shape is not None or self.is_raw or is_one:
            return None
        stated = None
        if format == image_formats.PNG:
            if not frame_reader.is_animated_png(data):
                return None
            stated = structure.check_image(data, "header" if self.check == "header" else "structure").orientation
        elif self.encode == KEEP and self.other_formats == REJECT:
            return None
        structure.check_size(data)
        self.limits.check_bytes(len(data))
        if self._reads_numbers(format):
            count, page_of = self._open_pages(data, str(format))
            self.limits.check_frames(count)
            pages = frame_reader.each(
                count, lambda number: self._encode_page(page_of(number), str(format), expected, is_frame=True)
            )
            return None if count < 2 else frame_reader.Frames(count, pages)
        reader = frame_reader.FrameReader(data, str(format))
        if reader.count < 2 or (format == frame_reader.TIFF and image_formats.is_raw_photo(reader.opened)):
            return None
        self.limits.check_frames(reader.count)
        if format in frame_reader.ANIMATED:  # all frames have one size
            stated = pixels.orientation(reader.opened) if stated is None else stated
            self._check_header(*pixels.stored_size(reader.opened, stated), stated, expected)
        return frame_reader.Frames(reader.count, self._each_frame(reader, data, str(format), stated, expected))

    def _each_frame(
        self,
        reader: frame_reader.FrameReader,
        data: bytes,
        format: str,
        stated: int | None,
        expected: tuple[int, int] | None,
    ) -> Iterator[Image | BadImageError]:
        """Yields the pictures of a file; `stated` is their EXIF orientation, None if each has its own."""

        def encode(number: int) -> Image:
            opened = reader.seek(number)
            turn = pixels.orientation(opened) if stated is None else stated
            self._check_header(*pixels.stored_size(opened, turn), turn, expected)
            self.limits.check_decoded(opened.height, opened.width, format)
            reader.load(number)
            return self._encode(opened, data, format, turn, is_frame=True)

        return frame_reader.each(reader.count, encode)

    @property
    def keeps_any_jpeg(self) -> bool:
        """Whether each whole JPEG that is upright is stored as it is, and nothing but its header is looked at."""
        takes_bytes = self.raw_shape is None and not self.is_raw and not self.is_base64 and self.metadata == KEEP
        return self._wants_any_pixels and takes_bytes and self.check == "structure" and not self._looks_further

    @property
    def kept_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of bare pixels that are stored unseen; None if there is more to do."""
        takes_bytes = self.encode == KEEP and not self.is_raw and not self.is_base64 and self.numbers.is_usual
        return self.raw_shape if takes_bytes and not self._looks_further else None

    @property
    def _looks_further(self) -> bool:
        needs_pixels = self.sum_pixels or self.objects is not None or self.frames == EACH or bool(self.functions)
        return self._checks_headers or needs_pixels

    # These two are asked for every image.
    @functools.cached_property
    def _checks_headers(self) -> bool:
        return self.orientation == REJECT or self.limits != checked_image.NO_LIMITS

    @functools.cached_property
    def _wants_any_pixels(self) -> bool:
        """Whether the pixels of every JPEG and PNG are stored as they are, perhaps turned upright."""
        takes_all = self.color == self.profile == self.encode == KEEP and self.background is None
        takes_all = takes_all and self.functions.function is None
        takes_all = takes_all and self.white_level == pixels.WHITE and self.numbers.is_usual and self.part.is_whole
        return takes_all and self.scaling == resample.UNSCALED and self.frames != REJECT and not self.limits.max_frames

    @functools.cached_property
    def resizes_in_c(self) -> bool:
        """Whether any image may be scaled in C."""
        return self.scaling.is_native and self.numbers.is_usual and self.part.is_whole and not self.functions

    @property
    def narrowing_level(self) -> int | None:
        """The number of 16 bits that becomes white where readers get 8; None if they get all."""
        return self.white_level if self.numbers.is_usual else None

    def _accepted(self) -> tuple[str, ...]:
        if self.encode == KEEP and self.other_formats == REJECT:
            return structure.CHECKED_FORMATS
        return (*pillow_decoder.decoded_formats(), *image_formats.MEDICAL)

    def _reads_numbers(self, format: str | None) -> bool:
        """Returns whether the numbers of a file are read without Pillow."""
        return format in image_formats.MEDICAL or (format == frame_reader.TIFF and not self.numbers.is_usual)

    def _open_pages(self, data: bytes, format: str) -> tuple[int, Callable[[int], number_reader.Page]]:
        """Returns how many pages or slices a file has, and what opens one by its number."""
        from imagebeam.transforms.images import medical_reader, number_reader  # late: a writer needs 15 MB for NumPy

        if format == frame_reader.TIFF:
            return frame_reader.count_pages(data), functools.partial(number_reader.TiffPage, data)
        slices = medical_reader.open_slices(data, format, self.plane)
        return slices.count, functools.partial(medical_reader.Slice, slices)

    def _shape_of(self, data: bytes, expected: tuple[int, int] | None) -> tuple[int, int, int] | None:
        """Returns height, width and channels of an image that comes as bare pixels; None for any other.

        Raises:
            BadImageError: if the bytes are not those of an image of the expected size.
        """
        if not self.is_raw or expected is None:
            return self.raw_shape
        height, width = expected
        channels = len(data) // (height * width)
        if channels not in structure.RAW_COLORSPACES or len(data) != height * width * channels:
            raise BadImageError(Reason.TRUNCATED, f"{len(data):,} bytes are no {height} x {width} pixels")
        return height, width, channels

    def _prepare_raw(self, data: bytes, shape: tuple[int, int, int], expected: tuple[int, int] | None) -> Image:
        """Prepares bare pixels."""
        image = structure.raw_image(data, shape)
        if self._checks_headers or expected is not None:
            self._check_header(image.height, image.width, checked_image.UPRIGHT, expected)
        if not self.numbers.is_usual:
            from imagebeam.transforms.images import number_reader

            numbers = number_reader.of_picture(pixels.from_bytes(data, shape), data)
            return self._encode_numbers(numbers, image.format, checked_image.UPRIGHT)
        if self.encode == KEEP:
            if self.functions:
                self.functions.apply(pixels.from_bytes(data, shape))
            return self._with_sums(image, pixels.from_bytes(data, shape)) if self.sum_pixels else image
        if self._scales_alone and (scaled := self.scaling.apply_to_bare(image)) is not None:
            return scaled
        return self._encode_picture(self._edit(pixels.from_bytes(data, shape)), self.encode)

    @functools.cached_property
    def _scales_alone(self) -> bool:
        """Whether nothing but their size is changed of bare pixels, and no picture of Pillow is needed for that."""
        is_cut = self.scaling.size is not None and self.scaling.fit != "stretch"
        return self.encode in pixels.BARE and self.color == KEEP and not (self.sum_pixels or is_cut or self.functions)

    def _check_header(self, height: int, width: int, orientation: int, expected: tuple[int, int] | None) -> None:
        self.limits.check_size(height, width)
        if orientation != checked_image.UPRIGHT and self.orientation == REJECT:
            raise BadImageError(Reason.NOT_UPRIGHT, f"its EXIF orientation is {orientation}: turn it first")
        if self.annotations == "upright":
            height, width = orientations.turn_size(height, width, orientation)
        if expected is not None and (height, width) != expected:
            found = f"has {width} x {height} px, its annotations are for {expected[1]} x {expected[0]}"
            if self.annotations == "stored" and orientations.turn_size(height, width, orientation) == expected:
                found += ", which is its size once it is turned upright: set image.annotations: upright"
            raise BadImageError(Reason.BAD_VALUE, found)

    # --- bytes that are kept -----------------------------------------------------------------------------------------

    def _turn(self, image: Image) -> Image:
        """Turns the pixels of a checked JPEG or PNG upright, if that is asked for, without loss where possible."""
        turn = image.orientation
        if turn == checked_image.UPRIGHT or self.orientation != APPLY:
            return image
        self.limits.check_decoded(image.height, image.width, f"turned {image.format}")
        if self.check == "header":  # a turn takes all chunks and segments, and trusts them
            structure.check_image(image.data)
        turned, is_lossless = turn_upright.turn_upright(image)
        return self._note_turn(turned, turn)._replace(reencoded="" if is_lossless else f"{image.format} turned")

    def _note_turn(self, image: Image, turn: int) -> Image:
        follows = turn if self.annotations == "stored" else checked_image.UPRIGHT
        return image._replace(turned=turn, annotation_turn=follows)

    def _has_wanted_pixels(self, image: Image) -> bool:
        """Returns whether the pixels of a checked JPEG or PNG are stored as they are, perhaps turned upright."""
        if self.functions.function is not None:
            return False
        if self.encode != KEEP or image.colorspace not in _KEPT_COLORSPACES.get(self.color, (image.colorspace,)):
            return False
        if not self.part.is_whole:
            return False
        is_transparent = image.colorspace in ("GRAY_ALPHA", "RGBA")
        if self.background is not None and (is_transparent or png_structure.has_transparency(image.data)):
            return False
        if not self.numbers.keeps(image):
            return False
        if self.white_level != pixels.WHITE and png_structure.is_wide_gray(image.data):
            return False
        height, width = image.height, image.width
        if self.orientation == APPLY:
            height, width = orientations.turn_size(height, width, image.orientation)
        return not self.scaling.is_needed(width, height) and self._has_wanted_profile(image)

    def _has_wanted_profile(self, image: Image) -> bool:
        """Returns whether the colors of a checked JPEG or PNG need no conversion; rejects it if it has many images."""
        if self.profile == SRGB or self.frames == REJECT or self.limits.max_frames is not None:
            opened = pillow_decoder.open_lazily(image.data, image.format)
            self._check_frames(opened)
            return self.profile != SRGB or not pixels.has_other_profile(opened)
        return True

    def _keep(self, image: Image) -> Image:
        if self.sum_pixels or self.functions:
            picture = pillow_decoder.decode(image)
            if self.functions:
                self.functions.apply(pixels.to_eight_bits(pixels.with_alpha(picture), self.white_level))
            return self._check_by_reader(self._with_sums(image, picture) if self.sum_pixels else image)
        if self.check == "decode":
            pillow_decoder.decode(image)
        return self._check_by_reader(image)

    # --- pixels that are changed -------------------------------------------------------------------------------------

    def _resize_in_c(self, image: Image) -> Image | None:
        """Returns a checked JPEG resized in one call; None if that does not do all that is asked for."""
        turns = self.orientation == APPLY and image.orientation != checked_image.UPRIGHT
        stays_jpeg = image.format == image_formats.JPEG and self.encode in (KEEP, image_formats.JPEG)
        is_padded = self.scaling.fit == "pad"
        if turns or is_padded or not stays_jpeg or not self.scaling.is_needed(image.width, image.height):
            return None
        if (image.colorspace, self.color) in _RECOLORED_BY_PILLOW or not self._has_wanted_profile(image):
            return None
        reduction = self.scaling.reduction(image.width, image.height)
        self.limits.check_decoded(-(-image.height // reduction), -(-image.width // reduction), image.format)
        how, size = self.scaling, (image.width, image.height)
        resized = resample.resize_jpeg(
            image, how.scaled(*size), how.part(*size), reduction, how.filter, self.encoding, self.color == "gray"
        )
        if resized is None:
            return None
        if self.sum_pixels:
            resized = self._with_sums(resized, pillow_decoder.decode(resized))
        cause = self._cause(image.format, image.format, (image.width, image.height)) if self.encode == KEEP else ""
        resized = resized._replace(orientation=image.orientation, source_format=image.format, reencoded=cause)
        return self._check_by_reader(resized)

    def _encode(self, opened: PIL.Image.Image, data: bytes, format: str, stated: int, is_frame: bool = False) -> Image:
        """Decodes, changes and encodes an opened image whose EXIF data state an orientation.

        `is_frame` says that it is one of several pictures, and decoded already.
        """
        if not is_frame:
            self._check_frames(opened)
        has_more = not is_frame and format in frame_reader.FORMATS and pillow_decoder.has_more_frames(opened)
        height, width = pixels.stored_size(opened, stated)
        chroma = pixels.chroma_of(opened)
        turn = stated if self.orientation == APPLY else checked_image.UPRIGHT
        upright = orientations.turn_size(height, width, turn)[::-1]
        if format == image_formats.JPEG and self.numbers.is_usual and self.part.is_whole and not self.functions:
            opened.draft(None, orientations.turn_size(*self.scaling.draft_size(*upright), turn))
        values = None
        if not is_frame:
            self.limits.check_decoded(opened.height, opened.width, format)
            if format == image_formats.JPEG and opened.mode == "RGB" and turn == checked_image.UPRIGHT:
                values = self._decode_for_functions(data, (height, width))
            if values is None:
                pillow_decoder.load(opened)
        if format == image_formats.PNG and opened.size != (width, height):
            found = f"Pillow: {opened.height} x {opened.width} pixels, the header says {height} x {width}"
            raise BadImageError(Reason.UNDECODABLE, found)
        has_turned = format not in structure.CHECKED_FORMATS and pixels.orientation(opened) != stated  # as TIFF's does
        done = stated if has_turned else checked_image.UPRIGHT
        if not self.numbers.is_usual:
            from imagebeam.transforms.images import number_reader

            return self._encode_numbers(number_reader.of_picture(opened, data), format, stated, done, is_frame)
        picture = opened.copy() if is_frame else opened  # the next frame is drawn on it, and needs its metadata
        highest = pixels.find_highest(picture)
        picture = pixels.with_alpha(picture)
        if self.profile == SRGB:
            picture = pixels.to_srgb(picture, self.white_level)
        picture = pixels.to_eight_bits(picture, self.white_level)
        picture = pixels.turn_decoded(picture, done, turn)
        if not self.part.is_whole:
            left, right = self.part.columns_of(picture.width)
            picture = picture.crop((left, 0, right, picture.height))
            upright = picture.size
        if self.functions:
            picture = self._edit(picture, values)
            upright = picture.size
        target = self.encode
        if target == KEEP:
            is_lossy = image_formats.is_lossy(opened, data, format) and picture.mode in ("L", "RGB")
            target = image_formats.JPEG if is_lossy else image_formats.PNG
        else:
            is_lossy = target == image_formats.WEBP and image_formats.is_lossy(opened, data, format)
        image = self._encode_picture(picture, target, chroma, upright, is_lossy)
        if turn == checked_image.UPRIGHT:
            image = image._replace(orientation=stated)
        if self.encode == KEEP:
            is_wide = highest is not None and self.white_level != pixels.WHITE
            image = image._replace(reencoded=self._cause(format, target, upright, is_frame, is_wide))
        image = self._note_turn(image, turn)._replace(source_format=format, highest=highest)
        return _first_of_several(image) if has_more and not image_formats.is_raw_photo(opened) else image

    def _encode_first_page(self, data: bytes, format: str, expected: tuple[int, int] | None) -> Image:
        """Encodes the first page of a TIFF, or the only slice of another file."""
        num_pages, page_of = self._open_pages(data, format)
        if num_pages > 1 and format in image_formats.MEDICAL:  # the first slice of a volume is of no use
            raise checked_image.several_slices(num_pages)
        if num_pages > 1 and self.frames == REJECT:
            raise checked_image.several_frames()
        self.limits.check_frames(num_pages)
        image = self._encode_page(page_of(0), format, expected)
        return _first_of_several(image) if num_pages > 1 else image

    def _encode_page(
        self, page: number_reader.Page, format: str, expected: tuple[int, int] | None, is_frame: bool = False
    ) -> Image:
        """Decodes, changes and encodes a page of a TIFF, or a slice."""
        self._check_header(page.height, page.width, page.orientation, expected)
        self.limits.check_decoded(page.height, page.width, format)
        numbers = page.read()
        if self.numbers.is_usual:
            return self._encode_eight_bits(numbers, format, is_frame)
        return self._encode_numbers(numbers, format, page.orientation, is_frame=is_frame)

    def _encode_eight_bits(self, numbers: np.ndarray, format: str, is_frame: bool) -> Image:
        """Changes and encodes a slice that is a picture; rejects one that has other numbers than those of a picture."""
        from imagebeam.transforms.images import stored_numbers

        values = stored_numbers.convert(numbers, self.numbers)
        target = image_formats.PNG if self.encode == KEEP else self.encode
        picture = self._edit(pixels.from_bytes(values.tobytes(), values.shape))
        image = self._encode_picture(picture, target)
        cause = self._cause(format, target, values.shape[1::-1], is_frame) if self.encode == KEEP else ""
        return image._replace(source_format=format, reencoded=cause)

    def _encode_numbers(
        self, numbers: np.ndarray, format: str, stated: int, done: int = checked_image.UPRIGHT, is_frame: bool = False
    ) -> Image:
        """Changes and encodes numbers, [height, width, bands]; `done` is the turn that their decoder has applied."""
        from imagebeam.transforms.images import stored_numbers

        turn = stated if self.orientation == APPLY else checked_image.UPRIGHT
        values = stored_numbers.turn_upright(stored_numbers.convert(numbers, self.numbers), done, turn)
        values = values[:, slice(*self.part.columns_of(values.shape[1]))]
        target = image_formats.PNG if self.encode == KEEP else self.encode
        image = stored_numbers.encode(stored_numbers.resize(values, self.scaling), target, self.encoding)
        if self.encode == KEEP:
            cause = self._cause(format, target, values.shape[1::-1], is_frame)
            image = image._replace(reencoded=cause if turn == 1 else cause.replace("recolored", "turned"))
        image = image._replace(source_format=format, orientation=stated if turn == checked_image.UPRIGHT else 1)
        return self._note_turn(self._check_by_reader(image), turn)

    def _cause(
        self, format: str, target: str, size: tuple[int, int], is_frame: bool = False, is_wide: bool = False
    ) -> str:
        """Returns why an image was encoded again although bytes are kept: one of a few texts, for statistics."""
        if format != target:
            return f"{format} to {target}"
        if is_frame:
            return f"{format} frame"
        if is_wide:
            return f"{format} of 16 bits"
        if self.functions.function is not None:
            return f"{format} changed by a function"
        if not self.part.is_whole:
            return f"{format} split"
        return f"{format} {'scaled' if self.scaling.is_needed(*size) else 'recolored'}"

    def _edit(self, picture: PIL.Image.Image, values: np.ndarray | None = None) -> PIL.Image.Image:
        """Returns a picture as functions of the user leave it, which see the channels that are stored.

        `values` are its pixels, if they are known; else they are copied out of it.
        """
        if not self.functions:
            return picture
        return self.functions.apply(pixels.recolor(picture, self.color, self.background), values)

    def _decode_for_functions(self, data: bytes, size: tuple[int, int]) -> np.ndarray | None:
        """Returns the pixels of a JPEG for a function of the user, without a picture of Pillow, which copies them.

        None if the function sees other ones, or where only Pillow decodes the JPEG.
        """
        is_shown_whole = self.part.is_whole and self.numbers.is_usual and self.profile == KEEP
        if self.functions.function is None or not is_shown_whole or self.color not in (KEEP, "rgb"):
            return None
        return reader_decoder.decode_whole(data, size)

    def _encode_picture(
        self,
        picture: PIL.Image.Image,
        target: str,
        chroma: str | None = None,
        size: tuple[int, int] | None = None,
        is_lossy: bool = False,
    ) -> Image:
        picture = pixels.recolor(picture, self.color, self.background)
        picture = self.scaling.apply(picture, self.background, size)
        image = self.encoding.encode(picture, target, chroma, is_lossy)
        if self.sum_pixels:
            image = self._with_sums(image, pillow_decoder.decode(image) if target in _LOSSY else picture)
        return self._check_by_reader(image)

    def _check_frames(self, opened: PIL.Image.Image) -> None:
        if self.frames == REJECT and pillow_decoder.is_animated(opened):
            raise checked_image.several_frames()
        if self.limits.max_frames is not None:
            self.limits.check_frames(pillow_decoder.count_frames(opened))

    def _check_by_reader(self, image: Image) -> Image:
        if self.check == "tensorflow" and image.format != image_formats.RAW:
            reader_decoder.shared().check(image.data, (image.height, image.width))
        return image

    @staticmethod
    def _with_sums(image: Image, picture: PIL.Image.Image) -> Image:
        return image._replace(sums=pixels.sum_up(picture))


def _first_of_several(image: Image) -> Image:
    """Returns an image with a note for statistics that the file holds more of them."""
    cause = image.reencoded or f"{image.source_format or image.format} to {image.format}"
    return image._replace(reencoded=f"{cause}, the first of several images in the file")


AS_IT_IS = ImagePolicy()
