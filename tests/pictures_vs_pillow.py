#!/usr/bin/env python3
"""Compares how we decode, scale and cut pictures with Pillow, byte for byte, over a few hundred generated files.

    tests/pictures_vs_pillow.py DUMP

DUMP is the program picture_dump. Needs Pillow 12.3.0 and numpy. Decoded pixels are compared with what vLLM makes of
Pillow's, scaled ones with Pillow's bicubic of our decoded ones, patches with numpy's of these. Everything is seeded.
PNG files are written here, since Pillow writes few of the kinds that exist; so are the parts of files that Pillow lacks.
"""
import io
import itertools
import math
import random
import struct
import subprocess
import sys
import zlib

import numpy as np
from PIL import Image, ImageOps

SIZES = [(1, 1), (1, 2), (2, 1), (2, 3), (13, 14), (14, 13), (15, 27), (28, 28), (29, 28), (28, 29), (31, 57), (1, 200),
         (200, 1), (448, 448), (600, 400)]
# Width and height, what they are scaled to, grid height and width, tokens: the table of the model's own rule.
RULE = [((1, 1), (1, 1), (2, 2), 1), ((448, 448), (448, 448), (32, 32), 256), ((600, 400), (600, 400), (30, 44), 330),
        ((1024, 768), (1024, 768), (56, 74), 1036), ((1920, 1080), (1920, 1080), (78, 138), 2691),
        ((1792, 1792), (1792, 1792), (128, 128), 4096), ((3000, 3000), (1794, 1794), (130, 130), 4225),
        ((4000, 3000), (2073, 1554), (112, 150), 4200), ((8000, 100), (7168, 89), (8, 512), 1024)]
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def pixels(rng, width, height, channels):
    """Waves with noise: smooth enough for lossy formats, rough enough for rounding to matter."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 90 * np.sin(x / rng.uniform(2, 40) + c) * np.cos(y / rng.uniform(2, 40)) for c in range(channels)]
    noise = np.random.default_rng(rng.randrange(1 << 30)).integers(-40, 40, (height, width, channels))
    return np.clip(np.stack(planes, -1) + noise, 0, 255).astype(np.uint8)


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(samples, depth, colour, interlaced=False, before=b"", rng=None):
    """samples [height, width, channels] of 0 to 2^depth - 1; each row gets a random filter where there is an rng."""
    height, width, channels = samples.shape
    unit = max(1, channels * depth // 8)

    def rows(part):
        out, previous = b"", None
        for row in part:
            values = row.reshape(-1)
            if depth == 16:
                data = values.astype(">u2").tobytes()
            elif depth == 8:
                data = values.astype(np.uint8).tobytes()
            else:
                bits = "".join(format(v, f"0{depth}b") for v in values)
                bits += "0" * (-len(bits) % 8)
                data = bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8))
            kind = rng.randrange(5) if rng else 0
            up = np.frombuffer(previous or bytes(len(data)), np.uint8).astype(int)
            now = np.frombuffer(data, np.uint8).astype(int)
            left = np.concatenate([np.zeros(unit, int), now])[:len(now)]
            corner = np.concatenate([np.zeros(unit, int), up])[:len(now)]
            guess = left + up - corner
            distances = np.stack([abs(guess - left), abs(guess - up), abs(guess - corner)])
            paeth = np.choose(distances.argmin(0), [left, up, corner])
            filtered = now - [0, left, up, (left + up) // 2, paeth][kind]
            out += bytes([kind]) + (filtered % 256).astype(np.uint8).tobytes()
            previous = data
        return out

    if interlaced:
        parts = [samples[y::dy, x::dx] for x, y, dx, dy in ADAM7]
        data = b"".join(rows(part) for part in parts if part.size)
    else:
        data = rows(samples)
    packed = zlib.compress(data)
    half = len(packed) // 2
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + before + png_chunk(b"IDAT", packed[:half]) +
            png_chunk(b"IDAT", packed[half:]) + png_chunk(b"IEND", b""))


def exif(orientation, big):
    order = ">" if big else "<"
    return (b"MM\0*" if big else b"II*\0") + struct.pack(order + "IHHHIHHI", 8, 1, 0x112, 3, 1, orientation, 0, 0)


def png_files(rng):
    for colour, channels in ((0, 1), (2, 3), (3, 1), (4, 2), (6, 4)):
        for depth in {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}[colour]:
            for interlaced in (False, True):
                for transparent in (False, True) if colour in (0, 2, 3) else (False,):
                    width, height = rng.choice(SIZES[3:11])
                    samples = pixels(rng, width, height, channels).astype(int)
                    samples = samples * 257 if depth == 16 else samples >> (8 - depth)
                    chunks = b""
                    if colour == 3:
                        chunks += png_chunk(b"PLTE", rng.randbytes(3 << depth))
                    if transparent:
                        place = samples[height // 2, width // 2]
                        alpha = rng.randbytes(min(1 << depth, 20)) if colour == 3 else b"".join(struct.pack(">H", v) for v in place)
                        chunks += png_chunk(b"tRNS", alpha)
                    name = f"PNG colour {colour} depth {depth}{' interlaced' * interlaced}{' tRNS' * transparent}"
                    yield name, png(samples, depth, colour, interlaced, chunks, rng)
    for width, height in SIZES:
        yield f"PNG {width}x{height}", png(pixels(rng, width, height, 3).astype(int), 8, 2)
    for orientation in range(1, 9):
        data = png(pixels(rng, 31, 57, 3).astype(int), 8, 2, before=png_chunk(b"eXIf", exif(orientation, orientation % 2)))
        yield f"PNG orientation {orientation}", data


def save(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def jpeg_files(rng):
    for mode, channels in (("RGB", 3), ("L", 1), ("CMYK", 4)):
        for progressive in (False, True):
            for subsampling in (0, 1, 2):
                for quality in (30, 75, 95):
                    width, height = rng.choice(SIZES[3:])
                    image = Image.fromarray(pixels(rng, width, height, channels).squeeze(-1) if channels == 1 else
                                            pixels(rng, width, height, channels), mode)
                    data = save(image, "JPEG", progressive=progressive, subsampling=subsampling, quality=quality,
                                restart_marker_blocks=rng.choice((0, 0, 3)))
                    yield f"JPEG {mode} {width}x{height} subsampling {subsampling} quality {quality}{' progressive' * progressive}", data
    for orientation in range(1, 9):
        image = Image.fromarray(pixels(rng, 57, 31, 3))
        yield f"JPEG orientation {orientation}", save(image, "JPEG", exif=b"Exif\0\0" + exif(orientation, orientation % 2))
    # The same data read as YCCK: what an Adobe marker says.
    data = save(Image.fromarray(pixels(rng, 57, 31, 4), "CMYK"), "JPEG", quality=95)
    place = data.index(b"Adobe") + 11
    yield "JPEG YCCK", data[:place] + b"\2" + data[place + 1:]
    yield "JPEG with bytes behind its end", save(Image.fromarray(pixels(rng, 57, 31, 3)), "JPEG") + b"\xff\xd8 more"
    for width, height in SIZES:
        yield f"JPEG {width}x{height}", save(Image.fromarray(pixels(rng, width, height, 3)), "JPEG")


def webp_files(rng):
    for mode, channels in (("RGB", 3), ("RGBA", 4)):
        for width, height in SIZES[:12]:
            for options in ({"lossless": True}, {"quality": 80}, {"quality": 20, "method": 6}):
                image = Image.fromarray(pixels(rng, width, height, channels), mode)
                yield f"WebP {mode} {width}x{height} {options}", save(image, "WEBP", exact=True, **options)
    for orientation in range(1, 9):
        image = Image.fromarray(pixels(rng, 57, 31, 3))
        yield f"WebP orientation {orientation}", save(image, "WEBP", exif=b"Exif\0\0" + exif(orientation, orientation % 2))
    for mode, channels in (("RGB", 3), ("RGBA", 4)):
        for lossless in (False, True):
            frames = [Image.fromarray(pixels(rng, 57, 31, channels), mode) for _ in range(3)]
            yield f"WebP {mode} animated", save(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=lossless)


def gif(rng, width, height, frame, bits, interlaced, transparent, local, lzw):
    """A GIF written here: any frame on any canvas, codes that are cleared often."""
    left, top, frame_width, frame_height = frame
    indices = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 1 << bits, (frame_height, frame_width))
    indices[:, :frame_width // 2] = np.sort(indices[:, :frame_width // 2])  # runs, for long strings
    rows = list(range(frame_height))
    if interlaced:
        rows = rows[::8] + rows[4::8] + rows[2::4] + rows[1::2]
    data = bytes(indices[rows].astype(np.uint8).reshape(-1))
    table = rng.randbytes(3 << bits)
    out = b"GIF89a" + struct.pack("<HHBBB", width, height, 0 if local else 0x80 | (bits - 1), 0, 0) + (b"" if local else table)
    out += b"!\xfe\x05hello\0"
    if transparent is not None:
        out += b"!\xf9\4\1\0\0" + bytes([transparent]) + b"\0"
    out += b"," + struct.pack("<HHHHB", *frame, (0x80 | (bits - 1) if local else 0) | 0x40 * interlaced) + (table if local else b"")
    code_bits = max(2, bits)
    codes, size, clear = [], code_bits + 1, 1 << code_bits
    strings, value, held, packed = None, 0, 0, bytearray()

    def put(code):
        nonlocal value, held
        value |= code << held
        held += size
        while held >= 8:
            packed.append(value & 255)
            value >>= 8
            held -= 8

    at = 0
    while at < len(data):
        if strings is None or len(strings) + 2 >= lzw:
            put(clear)
            strings, size = {bytes([i]): i for i in range(clear)}, code_bits + 1
        length = 1
        while at + length < len(data) and data[at:at + length + 1] in strings:
            length += 1
        put(strings[data[at:at + length]])
        if at + length < len(data) and len(strings) + 2 < 4096:
            strings[data[at:at + length + 1]] = len(strings) + 2
            if len(strings) + 2 > 1 << size and size < 12:
                size += 1
        at += length
    put(clear + 1)
    packed.append(value & 255)
    blocks = b"".join(bytes([len(packed[i:i + 255])]) + packed[i:i + 255] for i in range(0, len(packed), 255))
    return out + bytes([code_bits]) + blocks + b"\0;"


def gif_files(rng):
    for width, height in SIZES[:13]:
        for transparency in (None, 3):
            image = Image.fromarray(pixels(rng, width, height, 3)).quantize(rng.choice((4, 16, 256)))
            options = {} if transparency is None else {"transparency": transparency}
            yield f"GIF {width}x{height} {options}", save(image, "GIF", interlace=rng.randrange(2), **options)
    for bits in range(1, 9):
        for interlaced in (False, True):
            for transparent in (None, rng.randrange(1 << bits)):
                frame = (3, 5, rng.randrange(1, 90), rng.randrange(1, 90))
                lzw = rng.choice((64 + (2 << bits), 4096, 1 << 20))
                canvas = rng.choice(((100, 100), (10, 10)))
                local = bool(rng.randrange(2))
                name = f"GIF {bits} bits{' interlaced' * interlaced}{' local' * local}, frame {frame} on {canvas}, transparent {transparent}, {lzw} codes"
                yield name, gif(rng, *canvas, frame, bits, interlaced, transparent, local, lzw)
    frames = [Image.fromarray(pixels(rng, 57, 31, 1).squeeze(-1)) for _ in range(3)]
    yield "GIF animated", save(frames[0], "GIF", save_all=True, append_images=frames[1:])


def all_files(rng):
    yield from png_files(rng)
    yield from jpeg_files(rng)
    yield from webp_files(rng)
    yield from gif_files(rng)
    for (width, height), *_ in RULE:
        yield f"rule {width}x{height}", save(Image.fromarray(pixels(rng, width, height, 3)), "PNG", compress_level=1)
    for _ in range(40):
        width, height = rng.randint(1, 2500), rng.randint(1, 2500)
        width, height = max(width, height // 150 + 1), max(height, width // 150 + 1)
        yield f"random {width}x{height}", save(Image.fromarray(pixels(rng, width, height, 3)), "JPEG", quality=60)


def as_vllm(data):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if not image.has_transparency_data:
        return np.asarray(image.convert("RGB"))
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.getchannel("A"))
    return np.asarray(white)


def reference(name, data):
    """Ours where Pillow is wrong: it clips 16-bit greys to 8 bits, and compares transparent colours of 2, 4 and 16 bits with
    pixels of 8."""
    deep = "depth 16" in name and ("colour 0" in name or "tRNS" in name)
    shallow = "colour 0" in name and "tRNS" in name and ("depth 2" in name or "depth 4" in name)
    if not deep and not shallow:
        return as_vllm(data)
    whole = Image.open(io.BytesIO(data))
    transparency = whole.info.get("transparency")
    samples = np.asarray(whole)
    if deep and samples.ndim == 2:
        samples = (samples.astype(int) >> 8).astype(np.uint8)
    if samples.ndim == 2:
        samples = samples[..., None].repeat(3, 2)
    if transparency is not None:
        # All samples of 16 bits here are a byte twice.
        transparency = np.asarray(transparency) // 257 if deep else transparency * (85 if "depth 2" in name else 17)
        seen = (samples == transparency).all(-1)
        samples = np.where(seen[..., None], 255, samples).astype(np.uint8)
    return samples


def fit(width, height):
    scale = min(1.0, math.sqrt(16384 / (max(1.0, width // 14) * max(1.0, height // 14))), 512 * 14 / width, 512 * 14 / height)
    return [min(max(1, int(side * scale)), 512 * 14) for side in (width, height)]


def patches_of(scaled):
    height, width, _ = scaled.shape
    padded = np.pad(scaled, ((0, -height % 28), (0, -width % 28), (0, 0)))
    grid_height, grid_width = padded.shape[0] // 14, padded.shape[1] // 14
    parts = padded.reshape(grid_height, 14, grid_width, 14, 3).transpose(0, 2, 4, 1, 3)
    return grid_height, grid_width, np.ascontiguousarray(parts).tobytes()


class Records:
    """What the dump writes, one record a call."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        self.at += count
        if self.at > len(self.data):
            sys.exit("the dump ends inside a record")
        return self.data[self.at - count:self.at]

    def picture(self, width, height):
        return np.frombuffer(self.take(width * height * 3), np.uint8).reshape(height, width, 3)


def compare(name, data, records):
    """What differs, or nothing; and the hash with the times."""
    numbers = struct.unpack("<10I", records.take(40))
    if numbers[0]:
        return f"refused: {records.take(numbers[0]).decode()}", None, numbers
    width, height, scaled_width, scaled_height, grid_height, grid_width, tokens = numbers[1:8]
    decoded = records.picture(width, height)
    scaled = records.picture(scaled_width, scaled_height)
    patches = records.take(grid_height * grid_width * 588)
    digest = records.take(16)
    want = reference(name, data)
    if decoded.shape != want.shape:
        return f"decoded to {decoded.shape}, Pillow's is {want.shape}", digest, numbers
    off = np.abs(decoded.astype(int) - want)
    if off.max():
        return f"decoded pixels differ by up to {off.max()} in {np.count_nonzero(off)} bytes", digest, numbers
    if [scaled_width, scaled_height] != fit(width, height):
        return f"scaled to {scaled_width} x {scaled_height}, wanted {fit(width, height)}", digest, numbers
    resized = np.asarray(Image.fromarray(decoded).resize((scaled_width, scaled_height), Image.Resampling.BICUBIC))
    if not np.array_equal(scaled, resized):
        return f"scaled pixels differ in {np.count_nonzero(scaled != resized)} bytes", digest, numbers
    if (grid_height, grid_width, patches) != patches_of(resized) or tokens != grid_height * grid_width // 4:
        return "the patches differ", digest, numbers
    return None, digest, numbers


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    count, differing, hashes = 0, 0, set()
    files = all_files(random.Random(8))
    while batch := list(itertools.islice(files, 20)):
        stream = b"".join(struct.pack("<I", len(data)) + data for _, data in batch)
        records = Records(subprocess.run([sys.argv[1]], input=stream, stdout=subprocess.PIPE, check=True).stdout)
        for name, data in batch:
            why, digest, numbers = compare(name, data, records)
            rule = [row for row in RULE if name == "rule {}x{}".format(*row[0])]
            if rule and why is None:
                _, scaled, grid, tokens = rule[0]
                if (tuple(numbers[3:5]), tuple(numbers[5:7]), numbers[7]) != (scaled, grid, tokens):
                    why = f"the rule gives {numbers[3:8]}"
                print(f"{name}: decoded in {numbers[8] / 1000:.1f} ms, scaled in {numbers[9] / 1000:.1f} ms")
            hashes.add(digest)
            count += 1
            if why:
                differing += 1
                print(f"{name}: {why}")
        if records.at != len(records.data):
            sys.exit("the dump has more records than there were files")
    if count < 300 or len(hashes) < 0.9 * count:
        sys.exit(f"{count} files with {len(hashes)} hashes are too few")
    if differing:
        sys.exit(f"{differing} of {count} pictures differ")
    print(f"{count} pictures are equal to Pillow's, byte for byte")


if __name__ == "__main__":
    main()
